// <usage-chart>: draws the table that it holds as stacked bars. Without this script the table stays.
// Colour and stripes of each series are those of its swatch in the legend.
import { tick } from "./format.js";

const HEIGHT = 240; // pixels
const MINUTE = 60; // seconds
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [2, 10, 30].map((n) => n * MINUTE).concat([1, 2, 3, 6, 12].map((n) => n * HOUR), [1, 2, 3, 7, 14, 30, 60].map((n) => n * DAY));
// The bars are hours and days in UTC, as on bills.
const hour = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", day: "numeric", month: "short" });

// Turns rows into columns: each series stacked on those before it; null where nothing was used.
function stacked(rows, series) {
  const columns = Array.from({ length: series }, () => []);
  for (const row of rows) {
    const cells = row.querySelectorAll("td[data-value]");
    let sum = 0;
    for (let i = 0; i < series; i++) {
      if (cells.length) sum += Number(cells[i].dataset.value);
      columns[i].push(cells.length ? sum : null);
    }
  }
  return columns;
}

// A fill of horizontal stripes that match the dashes of the swatch's line.
function striped(context, colour, ground, dashes) {
  if (!dashes.length) return colour;
  const tile = document.createElement("canvas");
  const height = dashes.reduce((sum, dash) => sum + dash, 0) * devicePixelRatio;
  tile.width = 4;
  tile.height = Math.round(height);
  const paint = tile.getContext("2d");
  paint.fillStyle = ground;
  paint.fillRect(0, 0, tile.width, tile.height);
  paint.fillStyle = colour;
  let y = 0;
  dashes.forEach((dash, i) => {
    if (i % 2 === 0) paint.fillRect(0, y, tile.width, dash * devicePixelRatio);
    y += dash * devicePixelRatio;
  });
  return context.createPattern(tile, "repeat");
}

// Options of every axis, for the element that it is drawn in.
export function axisIn(plot) {
  const style = getComputedStyle(plot);
  return { stroke: style.color, font: `12px ${style.fontFamily}`, ticks: { show: false }, grid: { stroke: style.borderTopColor, width: 1 } };
}

// Calls `again` when the theme changes, until `signal` aborts.
export function onTheme(again, signal) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again, { signal });
  const themed = new MutationObserver(again);
  themed.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  signal.addEventListener("abort", () => themed.disconnect());
}

// Creates the element that a chart is drawn in; `title` is its label.
export function plotOf(title) {
  const plot = document.createElement("div");
  plot.className = "plot";
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `${title}: chart; the table has the figures`);
  return plot;
}

// Shows the plot instead of the table, and a button for the table; `draw` is called at each change.
export function inPlaceOf(table, plot, { button, draw, signal }) {
  const show = (asTable) => {
    button.setAttribute("aria-pressed", String(asTable));
    table.hidden = !asTable;
    plot.hidden = asTable;
    draw();
  };
  button.hidden = false;
  button.addEventListener("click", () => show(!plot.hidden), { signal });
  show(false);
}

class UsageChart extends HTMLElement {
  connectedCallback() {
    this.wrap = this.querySelector(".table-wrap");
    this.rows = [...this.querySelectorAll("tbody tr")];
    this.values = [...this.querySelectorAll(".legend .value")];
    this.swatches = [...this.querySelectorAll(".legend svg")];
    this.plot = plotOf(this.querySelector("h2").textContent.trim());
    this.wrap.before(this.plot);
    this.plot.addEventListener("click", () => this.#follow());
    this.ends = new AbortController();
    const { signal } = this.ends;
    const draw = () => this.draw();
    inPlaceOf(this.wrap, this.plot, { button: this.querySelector("[data-table]"), draw, signal });
    onTheme(draw, signal);
    this.resized = new ResizeObserver(() => this.#resize());
    this.resized.observe(this.plot);
  }

  disconnectedCallback() {
    this.ends.abort();
    this.resized.disconnect();
    this.chart?.destroy();
  }

  draw() {
    if (this.plot.hidden) return;
    this.chart?.destroy();
    const style = getComputedStyle(this.plot);
    const axis = axisIn(this.plot);
    const times = this.rows.map((row) => Number(row.querySelector("th").dataset.at));
    const half = times.length > 1 ? (times[1] - times[0]) / 2 : HOUR / 2;
    const columns = stacked(this.rows, this.swatches.length).reverse();
    const options = {
      width: this.plot.clientWidth - 24,
      height: HEIGHT,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { setScale: false } },
      scales: { x: { range: (_, min, max) => [min - half, max + half] }, y: { range: (_, __, max) => [0, max > 0 ? max * 1.05 : 1] } },
      axes: [
        {
          ...axis,
          grid: { show: false },
          space: 64,
          size: 32,
          incrs: STEPS.filter((step) => step >= 2 * half),
          values: (_, ticks) => ticks.map((at) => (at % DAY ? hour : day).format(at * 1000)),
        },
        { ...axis, size: 64, values: (_, ticks) => ticks.map((one) => tick(one, { isMoney: this.hasAttribute("data-money") })) },
      ],
      series: [{}, ...this.swatches.map((swatch) => this.#series(swatch, style.backgroundColor)).reverse()],
      hooks: { setCursor: [(chart) => this.#tell(chart.cursor.idx)] },
    };
    this.chart = new uPlot(options, [times, ...columns], this.plot);
  }

  // The tallest is drawn first, so that each series covers the part below its own.
  #series(swatch, ground) {
    const colour = getComputedStyle(swatch).color;
    const dash = swatch.querySelector("line").getAttribute("stroke-dasharray");
    const dashes = dash === "none" ? [] : dash.split(" ").map(Number);
    return {
      stroke: colour,
      width: 1,
      fill: (chart) => striped(chart.ctx, colour, ground, dashes),
      paths: uPlot.paths.bars({ size: [0.72, 48] }),
      points: { show: false },
    };
  }

  // Shows the figures of the bar under the pointer, else those of the whole period.
  #tell(index) {
    const row = this.rows[index ?? -1];
    const cells = row?.querySelectorAll("td") ?? [];
    this.values.forEach((value, i) => (value.textContent = cells[i]?.textContent ?? value.dataset.total));
    this.at ??= this.querySelector(".legend").appendChild(Object.assign(document.createElement("li"), { className: "at" }));
    this.at.textContent = row?.querySelector("th").textContent ?? "";
  }

  // A click on a bar follows the link of its row in the table.
  #follow() {
    const link = this.rows[this.chart?.cursor.idx ?? -1]?.querySelector("th a");
    if (link) location.assign(link.href);
  }

  #resize() {
    if (!this.plot.hidden) this.chart?.setSize({ width: this.plot.clientWidth - 24, height: HEIGHT });
  }
}
customElements.define("usage-chart", UsageChart);
