// Charts of the report page and the dashboard, drawn with Plotly. Text from files goes in as text, never as markup.
"use strict";
window.lucid = window.lucid || {};
(function (lucid) {
  const X_TITLES = { step: "step", rows: "rows", seconds: "time" };

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  // Plotly reads a few tags in text; a zero-width space after "<" makes every name plain text.
  function plain(text) {
    return String(text).replace(/</g, "<\u200b").replace(/&/g, "&\u200b");
  }

  function timeScale(charts) {
    let most = 0;
    for (const line of charts) most = Math.max(most, line.points.seconds[line.points.seconds.length - 1] || 0);
    return most > 7200 ? [3600, "hours"] : most > 180 ? [60, "minutes"] : [1, "seconds"];
  }

  function axisOf(line, options, scale) {
    const points = line.points;
    if (options.x === "seconds") return points.seconds.map((value) => value / scale[0]);
    if (options.x === "rows" && points.rows) return points.rows;
    return points.step;
  }

  function number(value) {
    if (value === null || value === undefined) return "none";
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return Number(value.toPrecision(4)).toString();
  }

  function tracesOf(line, index, options, scale) {
    const x = axisOf(line, options, scale);
    const tone = colour("c" + ((line.colour ?? index) % 8));
    // A mean over a good part of a short curve hides more than it shows.
    const smooth = options.smooth !== false && x.length >= 4 * (options.window || 1) && line.points.smooth;
    const few = x.length <= 60;
    const traces = [];
    const hover = "%{y:.5~g}<extra>" + plain(line.name) + "</extra>";
    const common = { x, type: "scatter", connectgaps: false, name: plain(line.name), legendgroup: line.name };
    traces.push({
      ...common, y: line.points.y, mode: few ? "lines+markers" : "lines", opacity: smooth ? 0.3 : 1,
      showlegend: !smooth, line: { color: tone, width: smooth ? 1 : 1.8, dash: line.dash || "solid" },
      marker: { size: 5, color: tone }, hovertemplate: hover, hoverinfo: smooth ? "skip" : undefined,
    });
    if (smooth) {
      traces[0].hovertemplate = undefined;
      traces.push({
        ...common, y: smooth, mode: "lines", line: { color: tone, width: 2.2, dash: line.dash || "solid" },
        customdata: line.points.y.map(number), hovertemplate: "%{y:.5~g} (%{customdata})<extra>" + plain(line.name) + "</extra>",
      });
    }
    if (line.points.marks.length) {
      traces.push({
        x: line.points.marks.map((mark) => x[mark[0]]), y: line.points.marks.map(() => 0.03), yaxis: "y2",
        type: "scatter", mode: "markers", name: "not finite", showlegend: false, cliponaxis: false,
        marker: { symbol: "x", size: 9, color: colour("bad") }, text: line.points.marks.map((mark) => mark[1]),
        hovertemplate: "%{text}<extra>" + plain(line.name) + "</extra>",
      });
    }
    if (line.best !== undefined) {
      traces.push({
        x: [x[line.best]], y: [line.points.y[line.best]], type: "scatter", mode: "markers", showlegend: false,
        marker: { symbol: "star", size: 12, color: tone, line: { color: colour("paper"), width: 1 } },
        hovertemplate: "best %{y:.5~g}<extra>" + plain(line.name) + "</extra>",
      });
    }
    return traces;
  }

  function shapesOf(chart, options, scale) {
    const shapes = [], notes = [];
    for (const event of chart.events || []) {
      const x = options.x === "seconds" ? event.seconds / scale[0] : options.x === "rows" ? event.rows : event.step;
      if (x === undefined || x === null) continue;
      shapes.push({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour("muted"), width: 1, dash: "dot" } });
      notes.push({ x, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: plain(event.text), font: { size: 10, color: colour("muted") } });
    }
    return [shapes, notes];
  }

  // A curve that does not move would fill its chart with rounding noise: give it room.
  function flatRange(chart) {
    let low = Infinity, high = -Infinity;
    for (const line of chart.lines) for (const y of line.points.y) if (y !== null) { low = Math.min(low, y); high = Math.max(high, y); }
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (low > high || high - low > 1e-6 * size) return undefined;
    return size === 0 ? [-1, 1] : [low - 0.5 * size, high + 0.5 * size];
  }

  function layoutOf(chart, options, scale, legend) {
    const [shapes, annotations] = shapesOf(chart, options, scale);
    const axis = { gridcolor: colour("grid"), linecolor: colour("line"), zeroline: false, tickfont: { size: 11 }, automargin: true };
    const xTitle = options.x === "seconds" ? "running time, " + scale[1] : X_TITLES[options.x] || "step";
    const log = (options.log && chart.log !== false) || chart.log === true;
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 14, t: 18, b: 8 },
      hovermode: "x unified", hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("ink") } },
      showlegend: legend, legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0, font: { size: 11 } },
      xaxis: { ...axis, title: { text: xTitle, standoff: 6, font: { size: 11, color: colour("muted") } } },
      yaxis: { ...axis, type: log ? "log" : "linear", range: log ? undefined : flatRange(chart), exponentformat: "power" },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      shapes, annotations, barmode: "stack", uirevision: chart.title + options.x + log,
    };
  }

  lucid.number = number;

  function paint(element, chart, options) {
    const scale = timeScale(chart.lines);
    const traces = chart.lines.flatMap((line, index) => tracesOf(line, index, options, scale));
    const layout = layoutOf(chart, options, scale, chart.lines.length > 1);
    lucid.numPainted += 1;
    return window.Plotly.react(element, traces, layout, { displaylogo: false, responsive: true, displayModeBar: false });
  }

  // A chart takes tens of milliseconds: they are painted one per frame and when they come into view. Of two orders for
  // one chart the newer counts.
  const orders = new Map(), inView = new Set(), watched = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) inView.add(entry.target); else inView.delete(entry.target);
    lucid.paintSoon();
  }, { rootMargin: "200px" });
  let frame = 0;

  function forget(element) {
    watcher.unobserve(element);
    for (const known of [orders, inView, watched]) known.delete(element);
    if (window.Plotly) window.Plotly.purge(element);
  }

  function paintNext() {
    frame = 0;
    for (const element of [...watched]) if (!element.isConnected) forget(element);
    const ready = window.Plotly ? [...orders.keys()].filter((element) => inView.has(element)) : [];
    if (!ready.length) return;
    const order = orders.get(ready[0]);
    orders.delete(ready[0]);
    paint(ready[0], ...order);
    if (ready.length > 1) lucid.paintSoon();
  }

  lucid.numPainted = 0;
  lucid.paintSoon = function () { if (!frame) frame = requestAnimationFrame(paintNext); };
  window.addEventListener("beforeprint", () => { // a page on paper has all of its charts
    if (window.Plotly) for (const [element, order] of orders) paint(element, ...order);
    orders.clear();
  });

  // Draw or update one chart, soon. options: x "step" | "seconds" | "rows", log, smooth.
  lucid.draw = function (element, chart, options) {
    orders.set(element, [chart, options]);
    if (!watched.has(element)) { watched.add(element); watcher.observe(element); }
    lucid.paintSoon();
  };

  // One sentence per line for people who do not see the chart.
  lucid.describe = function (chart) {
    return chart.lines.map((line) => {
      const finite = line.points.y.map((y, at) => [y, at]).filter((pair) => pair[0] !== null);
      const bad = line.points.marks.length ? `, ${line.points.marks.length} not finite` : "";
      if (!finite.length) return `${line.name}: no finite value${bad}`;
      const low = finite.reduce((a, b) => (b[0] < a[0] ? b : a)), high = finite.reduce((a, b) => (b[0] > a[0] ? b : a));
      const last = finite[finite.length - 1];
      return `${line.name}: last ${number(last[0])} at step ${line.points.step[last[1]]}, lowest ${number(low[0])} at step ` +
        `${line.points.step[low[1]]}, highest ${number(high[0])} at step ${line.points.step[high[1]]}${bad}`;
    }).join(". ");
  };

  lucid.figure = function (chart) {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    const plot = document.createElement("div"), note = document.createElement("span"), words = document.createElement("p");
    if (chart.wide) figure.className = "wide";
    plot.className = "plot";
    plot.setAttribute("aria-hidden", "true");
    words.className = "hidden";
    caption.append(chart.title, note);
    figure.append(caption, plot, words);
    return { figure, plot, note, words };
  };

  lucid.startTheme = function (button, changed) {
    const root = document.documentElement, system = window.matchMedia("(prefers-color-scheme: dark)");
    let chosen = null;
    try { chosen = localStorage.getItem("lucid-theme"); } catch (_error) { /* a page opened from a file may have no storage */ }
    function apply() {
      root.dataset.theme = chosen || (system.matches ? "dark" : "light");
      button.textContent = root.dataset.theme === "dark" ? "Light" : "Dark";
      button.setAttribute("aria-label", "Switch to " + button.textContent.toLowerCase() + " colours");
      changed();
    }
    button.addEventListener("click", () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("lucid-theme", chosen); } catch (_error) { /* as above */ }
      apply();
    });
    system.addEventListener("change", apply);
    apply();
  };
})(window.lucid);
