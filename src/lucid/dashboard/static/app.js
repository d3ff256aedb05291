// The dashboard: which view is shown, and asking the server for what changed.
"use strict";
(function (lucid) {
  const { h } = lucid;
  const POLL_MS = 2000;
  const view = document.getElementById("view"), trouble = document.getElementById("trouble"), say = document.getElementById("say");
  const memory = {};
  const settings = Object.assign({ x: "step", log: false, window: 8 }, recall());
  let current = null, timer = 0, redraw = () => {};

  function recall() {
    try { return JSON.parse(localStorage.getItem("lucid-charts")) || {}; } catch (_error) { return {}; }
  }

  function remember() {
    try { localStorage.setItem("lucid-charts", JSON.stringify(settings)); } catch (_error) { /* private windows */ }
  }

  async function ask(path, options) {
    const answer = await fetch(path, options);
    if (!answer.ok) throw Object.assign(new Error(await answer.text()), { status: answer.status });
    return answer.json();
  }

  function query(pairs) {
    return new URLSearchParams(pairs).toString();
  }

  function tell(text) {
    trouble.hidden = !text;
    trouble.textContent = text || "";
  }

  function later(milliseconds) {
    clearTimeout(timer);
    timer = setTimeout(poll, milliseconds);
  }

  async function poll() {
    if (document.hidden) return later(POLL_MS);
    const asked = current;
    let next = POLL_MS;
    try {
      next = (await asked.update()) || POLL_MS;
      tell("");
    } catch (error) {
      if (asked === current) tell(error.status === 404 ? "This run is not in the folder any more." : "The server does not answer. Is `lucid ui` still running?");
    }
    if (asked === current) later(next);
  }

  // Megabytes of script that take a while to start: only once, and only where there are curves.
  function needPlotly() {
    if (document.getElementById("plotly")) return;
    document.head.append(h("script", { id: "plotly", src: "/static/plotly.js", onload: lucid.paintSoon }));
  }

  // -- views; each has update(), which may return how long to wait before the next

  function list() {
    document.title = "Lucid runs";
    let have = "", rows = [];
    const shown = lucid.listView(view, memory, (ids) => { location.hash = "#/compare/" + ids.map(encodeURIComponent).join("/"); });
    return {
      focusSearch: shown.focusSearch,
      async update() {
        const answer = await ask("/api/runs?" + query({ have }));
        if (!answer.same) {
          rows = answer.runs;
          have = answer.version;
          document.getElementById("folder").textContent = answer.folder;
        }
        shown.update(rows);
        return answer.waiting ? 50 : 0;
      },
    };
  }

  function tabs(names, start) {
    const panels = names.map((name, at) => h("section", { role: "tabpanel", id: "panel-" + at, "aria-labelledby": "tab-" + at, hidden: true }));
    const buttons = names.map((name, at) => h("button", { type: "button", role: "tab", id: "tab-" + at, "aria-controls": "panel-" + at, onclick: () => show(at) }, name));
    const bar = h("div", { role: "tablist", onkeydown: (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const at = (buttons.indexOf(document.activeElement) + move + names.length) % names.length;
      show(at);
      buttons[at].focus();
    } }, buttons);
    const shown = { at: start, changed: () => {} };
    function show(at) {
      shown.at = at;
      buttons.forEach((button, index) => { button.setAttribute("aria-selected", index === at); button.tabIndex = index === at ? 0 : -1; });
      panels.forEach((panel, index) => { panel.hidden = index !== at; });
      shown.changed(at);
    }
    return { bar, panels, shown, show };
  }

  function fill(panel, content) {
    const mark = JSON.stringify(content.mark);
    if (panel.dataset.mark === mark) return;
    panel.dataset.mark = mark;
    panel.replaceChildren(...content.make());
  }

  function run(id) {
    const title = h("h1", {}, id), state = h("span"), progress = h("span", { className: "muted" }), path = h("p", { className: "muted mono" }), notes = h("div");
    const { bar, panels, shown, show } = tabs(["Curves", "Settings", "Checkpoints", "Environment", "Log"], memory.tab || 0);
    const loading = h("p", { className: "muted", role: "status" }), charts = h("div", { className: "charts" }), below = h("div");
    const draw = lucid.chartsView(charts);
    const log = h("pre", { className: "log", tabIndex: 0, "aria-label": "Records as text" }), earlier = h("button", { type: "button" }, "Earlier records");
    let have = "", curves = null, logStart = null, logVersion = "", detail = null;

    panels[0].append(lucid.controls(settings, (again) => { remember(); if (again) { have = ""; later(60); } else redraw(); }), loading, charts, below);
    panels[4].append(h("p", {}, earlier), log);
    view.replaceChildren(h("p", {}, h("a", { href: "#/" }, "← all runs")), h("div", { className: "head" }, title, state, progress), path, notes, bar, ...panels);
    redraw = () => { if (curves && shown.at === 0) draw(lucid.chartsOfRun(curves), { ...settings, smooth: settings.window > 1 }); };
    shown.changed = (at) => { memory.tab = at; redraw(); if (at === 4) later(0); };
    show(shown.at);

    earlier.addEventListener("click", async () => {
      const page = await ask("/api/log?" + query({ id, before: logStart }));
      const height = log.scrollHeight;
      log.prepend(page.lines.map((line) => line + "\n").join(""));
      log.scrollTop += log.scrollHeight - height;
      logStart = page.start;
      earlier.disabled = logStart === 0;
    });

    async function showLog() {
      if (logVersion === have && logStart !== null) return;
      logVersion = have;
      const page = await ask("/api/log?" + query({ id })), follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
      log.textContent = page.lines.map((line) => line + "\n").join("");
      logStart = page.start;
      earlier.disabled = logStart === 0;
      if (follows) log.scrollTop = log.scrollHeight;
    }

    async function verify(file, button) {
      button.disabled = true;
      button.textContent = "Verifying…";
      const answer = await ask("/api/verify?" + query({ id, file }), { method: "POST", headers: { "X-Lucid": "1" } });
      say.textContent = `${file}: ${answer.reason === null ? "whole" : answer.reason}`;
      detail = null;
      later(0);
    }

    function checkpoints() {
      if (!detail.checkpoints.length) return [h("p", { className: "empty" }, "There is no checkpoint yet.")];
      const rows = detail.checkpoints.map((each) => {
        let verdict = each.verified ? (each.trouble === null ? h("span", { className: "good" }, "whole") : h("span", { className: "bad" }, each.trouble)) : "not verified";
        if (!each.verified && detail.can_verify) {
          verdict = h("button", { type: "button", "aria-label": "Verify " + each.file, onclick: (event) => verify(each.file, event.currentTarget) }, "Verify");
        }
        return [h("span", { className: "mono" }, each.file), each.tags.join(", "), each.step === null ? "" : each.step.toLocaleString("en"), each.value, each.bytes, lucid.when(each.saved), verdict];
      });
      const hint = detail.can_verify ? null : h("p", { className: "muted" }, "To verify all of them: ", h("code", {}, "lucid verify " + detail.path));
      return [lucid.grid(["File", "", "Step", "Value", "Size", "Saved", "Check"], rows), hint].filter(Boolean);
    }

    function tables() {
      const parts = [];
      if (detail.evals.rows.length) parts.push(h("h2", {}, "Evaluations"), lucid.grid(["step", ...detail.evals.names, ""], detail.evals.rows.slice(-20).reverse()));
      if (detail.events.length) {
        const rows = detail.events.slice().reverse().map((each) => [lucid.when(each.time), each.kind, each.text]);
        parts.push(h("h2", {}, "What happened"), lucid.grid(["time", "kind", "what"], rows));
      }
      if (detail.broken) parts.push(h("p", { className: "warn" }, `${detail.broken} lines of records.jsonl are broken and were left out.`));
      return parts;
    }

    function showDetail(found) {
      detail = found;
      document.title = detail.name + " · Lucid";
      title.textContent = detail.name;
      state.replaceChildren(lucid.badge(detail.status));
      progress.replaceChildren(...[lucid.steps(detail)].flat(), " steps" + (detail.reason && detail.reason !== detail.status ? ` · ${detail.reason}` : ""));
      path.textContent = detail.path;
      fill(notes, { mark: detail.notes, make: () => detail.notes.map((note) => h("p", { className: "warn" }, note)) });
      fill(below, { mark: [detail.evals, detail.events, detail.broken], make: tables });
      fill(panels[1], { mark: [detail.plan, detail.config], make: () => [h("div", { className: "columns" },
        h("div", {}, h("h2", {}, "Plan"), lucid.facts(detail.plan, "No plan was recorded.")),
        h("div", {}, h("h2", {}, "Config"), lucid.facts(detail.config, "There is no config.toml.")))] });
      fill(panels[2], { mark: [detail.checkpoints, detail.can_verify], make: checkpoints });
      fill(panels[3], { mark: detail.environment, make: () => [lucid.facts(detail.environment, "There is no environment.json.")] });
    }

    return {
      async update() {
        const first = !detail, details = () => ask("/api/run?" + query({ id }));
        const curvesAsked = ask("/api/curves?" + query({ id, have, window: settings.window + 1 - (settings.window === 1), points: 1500 }));
        const [{ runs: [answer] }, found] = await Promise.all([curvesAsked, first ? details() : detail]);
        if (!answer) throw Object.assign(new Error("gone"), { status: 404 });
        if (!answer.same) {
          curves = lucid.merged(curves, answer);
          have = answer.version;
          loading.textContent = answer.loaded < 1 ? `Reading records: ${Math.floor(100 * answer.loaded)} %` : "";
          redraw();
        }
        if (first) showDetail(found);
        if (curves.loaded < 1) return 30;
        if (!first && (!answer.same || detail.status !== answer.status)) showDetail(await details());
        if (shown.at === 4) await showLog();
        return 0;
      },
    };
  }

  function compare(ids) {
    document.title = `${ids.length} runs · Lucid`;
    const picked = h("ul", { className: "picked", "aria-label": "Runs that are compared" }), charts = h("div", { className: "charts" });
    const loading = h("p", { className: "muted", role: "status" }), differences = h("div");
    const draw = lucid.chartsView(charts);
    const have = new Map(), curves = new Map(), names = new Map();
    let asked = false;
    view.replaceChildren(h("p", {}, h("a", { href: "#/" }, "← all runs")), h("h1", {}, `${ids.length} runs side by side`), picked,
      lucid.controls(settings, (again) => { remember(); if (again) { have.clear(); later(60); } else redraw(); }), loading, charts, h("h2", {}, "Settings that differ"), differences);

    redraw = () => {
      const there = ids.filter((id) => curves.has(id));
      picked.replaceChildren(...there.map((id, at) => h("li", {}, h("i", { style: `background: var(--c${at % 8})` }), h("a", { href: lucid.runLink(id) }, names.get(id) || id))));
      draw(lucid.chartsOfRuns(there.map((id) => curves.get(id)), there.map((id) => names.get(id) || id)), { ...settings, smooth: settings.window > 1 });
    };

    function showDifferences(answer) {
      const heads = ["", ...answer.ids.map((id) => names.get(id) || id)];
      const same = h("p", { className: "muted" }, `${answer.num_same} settings are the same.`);
      differences.replaceChildren(...(answer.rows.length ? [lucid.grid(heads, answer.rows.map(([key, values]) => [key, ...values]))] : []), same);
    }

    return {
      async update() {
        if (!asked) {
          const { runs } = await ask("/api/runs");
          const byName = new Map(runs.map((row) => [row.id, row.name]));
          const alike = (name) => ids.filter((id) => byName.get(id) === name).length > 1;
          for (const id of ids) names.set(id, alike(byName.get(id)) ? id : byName.get(id) || id);
          showDifferences(await ask("/api/diff?" + query(ids.map((id) => ["id", id]))));
          asked = true;
        }
        const pairs = ids.flatMap((id) => [["id", id], ["have", have.get(id) || ""]]);
        const points = Math.max(200, Math.floor(4000 / ids.length));
        const answer = await ask("/api/curves?" + query([...pairs, ["window", settings.window + 1 - (settings.window === 1)], ["points", points]]));
        const fresh = answer.runs.filter((each) => !each.same);
        for (const each of fresh) { curves.set(each.id, lucid.merged(curves.get(each.id), each)); have.set(each.id, each.version); }
        const behind = [...curves.values()].filter((each) => each.loaded < 1);
        loading.textContent = behind.length ? `Reading records of ${behind.length} runs…` : "";
        if (fresh.length) redraw();
        return behind.length ? 30 : 0;
      },
    };
  }

  function route() {
    const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
    redraw = () => {};
    if (parts[0] === "run" || parts[0] === "compare") needPlotly();
    if (parts[0] === "run" && parts[1]) current = run(parts[1]);
    else if (parts[0] === "compare" && parts.length > 2) current = compare(parts.slice(1));
    else current = list();
    view.focus({ preventScroll: true });
    window.scrollTo(0, 0);
    later(0);
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || /INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName) || !current.focusSearch) return;
    event.preventDefault();
    current.focusSearch();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) later(0); });
  window.addEventListener("hashchange", () => { if (location.hash !== "#view") route(); });
  lucid.startTheme(document.getElementById("theme"), () => redraw());
  route();
})(window.lucid);
