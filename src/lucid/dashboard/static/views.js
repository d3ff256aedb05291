// Building the views of the dashboard. Whatever comes from a run goes in as text.
"use strict";
(function (lucid) {
  function h(tag, props, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(props || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name in element && name !== "list" && name !== "role") element[name] = value;
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false).map((child) =>
      child instanceof Node ? child : String(child)));
    return element;
  }

  function ago(seconds) {
    if (!seconds) return "";
    const passed = Math.max(0, Date.now() / 1000 - seconds);
    for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (passed >= size) return Math.floor(passed / size) + " " + name + " ago";
    return "just now";
  }

  function when(seconds) {
    return seconds ? new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "";
  }

  const STATUS_WORDS = {
    running: "its process is alive", finished: "it reached its end",
    interrupted: "it was asked to stop; started again, it goes on",
    failed: "an error ended it; started again, it goes on from its last checkpoint",
    died: "its process is gone without a word; started again, it goes on from its last checkpoint",
  };

  function badge(status) {
    return h("span", { className: "badge " + status, title: STATUS_WORDS[status] }, status);
  }

  function steps(row) {
    if (!row.total) return row.step.toLocaleString("en");
    const text = h("span", {}, row.step.toLocaleString("en"), h("span", { className: "total" }, " / " + row.total.toLocaleString("en")));
    const share = Math.floor((100 * row.step) / row.total);
    return [h("progress", { max: row.total, value: Math.min(row.step, row.total), "aria-label": share + " percent of the steps" }), text];
  }

  function runLink(id) { return "#/run/" + encodeURIComponent(id); }

  function grid(heads, rows, className) {
    return h("div", { className: "scroll" }, h("table", { className: className || "" },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
  }

  function facts(pairs, empty) {
    if (!pairs.length) return h("p", { className: "empty" }, empty);
    return h("table", { className: "facts" }, h("tbody", {}, pairs.map(([key, text]) => h("tr", {},
      h("th", { scope: "row" }, key), h("td", {}, text.includes("\n") ? h("pre", {}, text) : text)))));
  }

  const SORTS = {
    name: (row) => row.name.toLowerCase(), status: (row) => row.status, step: (row) => row.step,
    best: (row) => (row.best && row.best.value !== null ? row.best.value : Infinity),
    loss: (row) => (row.loss && row.loss.value !== null ? row.loss.value : Infinity),
    model: (row) => row.model, started: (row) => row.started || 0, changed: (row) => row.changed,
  };
  const COLUMNS = [["name", "Run"], ["status", "Status"], ["step", "Steps"], ["best", "Best"], ["loss", "Train loss"],
    ["model", "Model", "wide"], ["started", "Started", "wide"], ["changed", "Last record", "wide"]];

  const PAGE_ROWS = 100; // as many rows as a browser lays out between two keys

  // The list of runs; `update(rows)` changes only the rows that differ. More rows come as one scrolls to the end.
  lucid.listView = function (place, memory, compare) {
    const search = h("input", { type: "search", placeholder: "Search runs", "aria-label": "Search runs by name, model, folder or status", value: memory.search || "" });
    const filter = h("select", { "aria-label": "Show only runs with this status" },
      ["all", ...Object.keys(STATUS_WORDS)].map((name) => h("option", { value: name }, name)));
    filter.value = memory.filter || "all";
    const button = h("button", { type: "button", className: "main" });
    const count = h("span", { className: "muted", role: "status" });
    const body = h("tbody"), heads = new Map(), shown = new Map();
    const head = h("tr", {}, h("th", { scope: "col", className: "pick" }, h("span", { className: "hidden" }, "Compare")));
    for (const [key, title, extra] of COLUMNS) {
      const cell = h("th", { scope: "col", className: extra || "" }, h("button", { type: "button", onclick: () => sortBy(key) }, title));
      heads.set(key, cell);
      head.append(cell);
    }
    const table = h("div", { className: "scroll" }, h("table", { className: "runs", "aria-label": "Runs" }, h("thead", {}, head), body));
    const empty = h("p", { className: "empty", hidden: true });
    const more = h("button", { type: "button", className: "more", hidden: true, onclick: () => showMore() });
    place.replaceChildren(h("h1", { className: "hidden" }, "Runs"), h("div", { className: "bar" }, search, filter, button, count), table, more, empty);
    new IntersectionObserver(([entry]) => { if (entry.isIntersecting) showMore(); }, { rootMargin: "400px" }).observe(more);
    let rows = [], limit = PAGE_ROWS;
    memory.sort = memory.sort || ["started", -1];
    memory.picked = memory.picked || new Set();

    function sortBy(key) {
      memory.sort = memory.sort[0] === key ? [key, -memory.sort[1]] : [key, key === "name" || key === "best" || key === "loss" ? 1 : -1];
      showFirst();
    }

    function rowOf(row) {
      const pick = h("input", { type: "checkbox", checked: memory.picked.has(row.id), "aria-label": "Compare " + row.name, onchange: () => {
        if (pick.checked) memory.picked.add(row.id); else memory.picked.delete(row.id);
        showButton();
      } });
      const more = row.name === row.id ? null : h("small", { className: "mono" }, row.id);
      const best = row.best ? [row.best.text, h("span", { className: "muted" }, " " + row.best.name.replace(/^eval\//, ""))] : "";
      return h("tr", {}, h("td", { className: "pick" }, h("label", {}, pick)), h("td", { className: "name" }, h("a", { href: runLink(row.id) }, row.name), more),
        h("td", {}, badge(row.status)), h("td", {}, steps(row)), h("td", {}, best), h("td", {}, row.loss ? row.loss.text : ""),
        h("td", { className: "wide" }, row.model), h("td", { className: "wide" }, when(row.started)), h("td", { className: "wide" }, ago(row.changed)));
    }

    function matches(row) {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const text = [row.name, row.id, row.model, row.status].join(" ").toLowerCase();
      return (filter.value === "all" || row.status === filter.value) && words.every((word) => text.includes(word));
    }

    function showButton() {
      for (const id of [...memory.picked]) if (!rows.some((row) => row.id === id)) memory.picked.delete(id);
      button.textContent = `Compare ${memory.picked.size || ""}`.trim();
      button.disabled = memory.picked.size < 2;
    }

    function show() {
      memory.search = search.value;
      memory.filter = filter.value;
      const [key, direction] = memory.sort, value = SORTS[key];
      for (const [name, cell] of heads) cell.setAttribute("aria-sort", name === key ? (direction > 0 ? "ascending" : "descending") : "none");
      const wanted = rows.filter(matches).sort((a, b) => {
        const x = value(a), y = value(b);
        return x === y ? (a.id < b.id ? -1 : 1) : (x < y ? -1 : 1) * direction;
      });
      more.hidden = wanted.length <= limit;
      more.textContent = `Show more (${limit} of ${wanted.length})`;
      const elements = wanted.slice(0, limit).map((row) => {
        const mark = JSON.stringify(row) + ago(row.changed);
        const known = shown.get(row.id);
        if (known && known.mark === mark) return known.element;
        const element = rowOf(row), focused = known && known.element.contains(document.activeElement);
        const at = focused ? [...known.element.querySelectorAll("a, input")].indexOf(document.activeElement) : -1;
        if (known && known.element.parentNode === body) known.element.replaceWith(element);
        if (at >= 0) element.querySelectorAll("a, input")[at].focus();
        shown.set(row.id, { mark, element });
        return element;
      });
      if (elements.length !== body.children.length || elements.some((element, at) => body.children[at] !== element)) body.replaceChildren(...elements);
      count.textContent = (wanted.length === rows.length ? "" : `${wanted.length} of `) + (rows.length === 1 ? "1 run" : `${rows.length} runs`);
      empty.hidden = wanted.length > 0;
      empty.textContent = rows.length ? "No run matches." : "There are no runs in this folder yet. A run shows up here as soon as it starts.";
      showButton();
    }

    function showMore() {
      limit += PAGE_ROWS;
      show();
    }

    function showFirst() {
      limit = PAGE_ROWS;
      show();
    }

    search.addEventListener("input", showFirst);
    filter.addEventListener("change", showFirst);
    button.addEventListener("click", () => compare([...memory.picked]));
    return { update(found) { rows = found; show(); }, focusSearch() { search.focus(); search.select(); } };
  };

  // Controls that all charts of a view share.
  lucid.controls = function (settings, changed) {
    const x = h("select", {}, [["step", "step"], ["seconds", "time"], ["rows", "rows"]].map(([value, text]) => h("option", { value }, text)));
    x.value = settings.x;
    const log = h("input", { type: "checkbox", checked: settings.log });
    const smooth = h("input", { type: "range", min: 0, max: 8, step: 1, value: Math.round(Math.log2(settings.window)) });
    const words = h("span", { className: "muted" });
    function say() {
      words.textContent = settings.window > 1 ? `mean of ${settings.window + 1} records, from ${4 * settings.window} on` : "off";
      smooth.setAttribute("aria-valuetext", words.textContent);
    }
    x.addEventListener("change", () => { settings.x = x.value; changed(false); });
    log.addEventListener("change", () => { settings.log = log.checked; changed(false); });
    smooth.addEventListener("input", () => { settings.window = 2 ** Number(smooth.value); say(); changed(true); });
    say();
    return h("div", { className: "bar", role: "group", "aria-label": "How the curves are drawn" }, h("label", {}, "x axis ", x),
      h("label", {}, log, "log scale"), h("label", {}, "smoothing ", smooth), words);
  };

  // A place for charts that keeps the ones it has and draws what is new.
  lucid.chartsView = function (place) {
    const known = new Map();
    return function (charts, options) {
      for (const [title, parts] of known) {
        if (!charts.some((chart) => chart.title === title)) { parts.figure.remove(); known.delete(title); }
      }
      for (const chart of charts) {
        let parts = known.get(chart.title);
        if (!parts) {
          parts = lucid.figure(chart);
          known.set(chart.title, parts);
        }
        if (parts.figure.parentNode !== place) place.append(parts.figure);
      }
      for (const chart of charts) {
        const parts = known.get(chart.title), state = [chart, { ...options, theme: document.documentElement.dataset.theme }];
        if (parts.state && isSame(parts.state, state)) continue;
        parts.state = state;
        parts.note.textContent = chart.note || "";
        parts.words.textContent = lucid.describe(chart);
        lucid.draw(parts.plot, chart, options);
      }
    };
  };

  // Whether a chart would look as it does: points that did not change are the same objects.
  function isSame([before, was], [chart, options]) {
    const rest = (each, how) => JSON.stringify([how, each.events, each.lines.map((line) => [line.name, line.best, line.colour])]);
    return before.lines.length === chart.lines.length && before.lines.every((line, at) => line.points === chart.lines[at].points) &&
      rest(before, was) === rest(chart, options);
  }

  // What the browser has of a run's curves, with what the server says is new.
  lucid.merged = function (before, answer) {
    if (!before || !answer.since || before.version !== answer.since) return answer;
    const points = {};
    for (const [name, fresh] of Object.entries(answer.points)) {
      const old = before.points[name];
      points[name] = old ? extended(old, fresh) : fresh;
    }
    return { ...answer, points };
  };

  function extended(old, fresh) {
    const known = JSON.stringify([old.step.slice(fresh.keep), old.y.slice(fresh.keep), (old.rows || []).slice(fresh.keep)]);
    if (known === JSON.stringify([fresh.step, fresh.y, fresh.rows || []])) return old;
    const found = { marks: old.marks.filter((mark) => mark[0] < fresh.keep).concat(fresh.marks) };
    for (const [name, values] of Object.entries(fresh)) {
      if (Array.isArray(values) && name !== "marks") found[name] = (old[name] || []).slice(0, fresh.keep).concat(values);
    }
    return found;
  }

  const OWN = { "train/lr": "Learning rate", "train/grad_norm": "Gradient norm before clipping", "train/rows_per_second": "Rows per second" };

  function lineOf(run, name, label, colour) {
    const points = run.points[name];
    const line = { name: label, points, colour };
    if (run.best && run.best.name === name) {
      const at = points.step.lastIndexOf(run.best.step);
      if (at >= 0) line.best = at;
    }
    return line;
  }

  // The charts of one run: losses together, then metrics, then the rest.
  lucid.chartsOfRun = function (run) {
    const names = Object.keys(run.points), left = new Set(names), charts = [];
    function add(title, group, extra) {
      group = group.filter((name) => left.has(name));
      for (const name of group) left.delete(name);
      if (group.length) charts.push({ title, lines: group.map((name, at) => lineOf(run, name, name.replace(/^time\//, ""), at)), events: run.events, ...extra });
    }
    add("Loss", ["train/loss", "eval/loss"], { wide: true });
    for (const name of names) if (name.startsWith("eval/")) add(name.slice(5), [name]);
    for (const [name, title] of Object.entries(OWN)) add(title, [name]);
    add("Time per stage, seconds between two records", names.filter((name) => name.startsWith("time/")));
    for (const name of names) add(name, [name]);
    return charts;
  };

  // The charts of several runs: one per value, one line per run.
  lucid.chartsOfRuns = function (runs, labels) {
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.points)))];
    const first = ["eval/loss", "train/loss"];
    names.sort((a, b) => (first.includes(b) - first.includes(a)) || (b.startsWith("eval/") - a.startsWith("eval/")));
    return names.map((name) => ({
      title: OWN[name] || name, wide: false,
      lines: runs.map((run, at) => [run, at]).filter(([run]) => run.points[name]).map(([run, at]) => lineOf(run, name, labels[at], at)),
    }));
  };

  lucid.h = h;
  lucid.ago = ago;
  lucid.when = when;
  lucid.badge = badge;
  lucid.steps = steps;
  lucid.grid = grid;
  lucid.facts = facts;
  lucid.runLink = runLink;
})(window.lucid);
