// <load-chart>: draws the table of its <live-part> as lines, and again after each change.
// Without this script the table stays.
import { axisIn, inPlaceOf, onTheme, plotOf } from "./chart.js";
import { clock } from "./format.js";

const HEIGHT = 140; // pixels
const PAST_S = 900; // what the axis shows; a gateway that started later has fewer points
const GAP_S = 25; // points are 10 s apart; the line is broken where two are missing
const count = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const share = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });
const PLOTS = [
  { title: "Tokens per second", lines: [["Prompt", 0], ["Output", 1]], format: count, least: 10 },
  { title: "Requests", lines: [["Running", 2], ["Queued", 3]], format: count, least: 4 },
  { title: "KV cache, fullest engine", lines: [["In use", 4]], format: share, least: 1 },
];
const DASHES = [[], [5, 3]];

// The table's columns: times, then figures; null where there is none.
function columns(table) {
  const found = [[], [], [], [], [], []];
  let before;
  for (const row of table.querySelectorAll("tbody tr")) {
    if (!row.querySelector("th")) break; // the row that says there is no data
    const at = Number(row.querySelector("th").dataset.at);
    if (at - before > GAP_S) [at - GAP_S / 2, ...Array(5).fill(null)].forEach((value, i) => found[i].push(value));
    before = at;
    found[0].push(at);
    row.querySelectorAll("td").forEach((cell, i) => {
      const value = parseFloat(cell.dataset.value);
      found[i + 1].push(Number.isNaN(value) ? null : value);
    });
  }
  return found;
}

class LoadChart extends HTMLElement {
  connectedCallback() {
    this.source = this.querySelector("live-part");
    this.plots = document.createElement("div");
    this.plots.className = "plots";
    this.figures = PLOTS.map((plot) => this.#figure(plot));
    this.source.before(this.plots);
    this.ends = new AbortController();
    const { signal } = this.ends;
    const draw = () => this.draw();
    inPlaceOf(this.source, this.plots, { button: this.querySelector("[data-table]"), draw, signal });
    this.addEventListener("live", draw, { signal });
    onTheme(draw, signal);
    this.resized = new ResizeObserver(() => this.#resize());
    this.resized.observe(this.plots);
  }

  disconnectedCallback() {
    this.ends.abort();
    this.resized.disconnect();
    for (const figure of this.figures) figure.chart?.destroy();
  }

  draw() {
    if (this.plots.hidden) return;
    const data = columns(this.source);
    this.figures.forEach((figure, i) => {
      figure.chart?.destroy();
      figure.chart = new uPlot(this.#options(figure, PLOTS[i]), [data[0], ...PLOTS[i].lines.map(([, at]) => data[at + 1])], figure.plot);
      this.#tell(figure, PLOTS[i], null);
    });
  }

  #options(figure, { lines, format, least }) {
    const axis = axisIn(figure.plot);
    return {
      width: figure.plot.clientWidth,
      height: HEIGHT,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { setScale: false } },
      scales: { x: { range: (_, __, max) => [(max ?? Date.now() / 1000) - PAST_S, max ?? Date.now() / 1000] }, y: { range: (_, __, max) => [0, Math.max(least, max * 1.05)] } },
      axes: [
        { ...axis, grid: { show: false }, space: 56, size: 28, incrs: [60, 120, 300, 600], values: (_, ticks) => ticks.map((at) => clock.format(at * 1000)) },
        { ...axis, size: 48, space: 36, values: (_, ticks) => ticks.map((tick) => format.format(tick)) },
      ],
      series: [{}, ...lines.map((_, i) => this.#series(figure, i))],
      hooks: { setCursor: [(chart) => this.#tell(figure, { lines, format }, chart.cursor.idx)] },
    };
  }

  #series(figure, i) {
    return { stroke: getComputedStyle(figure.swatches[i]).color, width: 1.5, dash: DASHES[i], points: { show: false } };
  }

  #figure({ title, lines }) {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.append(Object.assign(document.createElement("strong"), { textContent: title }));
    const values = lines.map(([name], i) => {
      const line = document.createElement("span");
      line.innerHTML = `<svg class="c${i + 1}" width="16" height="4" aria-hidden="true"><line x1="0" y1="2" x2="16" y2="2" stroke="currentColor" stroke-width="2" stroke-dasharray="${DASHES[i].join(" ") || "none"}"/></svg>`;
      const value = document.createElement("span");
      line.append(name, value);
      caption.append(line);
      return value;
    });
    const plot = plotOf(`${title} of the last 15 minutes`);
    figure.append(caption, plot);
    this.plots.append(figure);
    return { plot, values, swatches: [...caption.querySelectorAll("svg")] };
  }

  // Shows the figures under the pointer, else the latest ones.
  #tell(figure, { lines, format }, index) {
    lines.forEach((_, i) => {
      const series = figure.chart?.data[i + 1] ?? [];
      const value = series[index ?? series.length - 1];
      figure.values[i].textContent = value == null ? "–" : format.format(value);
    });
  }

  #resize() {
    for (const { chart, plot } of this.figures) {
      if (!this.plots.hidden) chart?.setSize({ width: plot.clientWidth, height: HEIGHT });
    }
  }
}
customElements.define("load-chart", LoadChart);
