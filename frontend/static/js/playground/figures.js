// What is shown of an answer in figures.
export const PHASES = {
  waiting: "Waiting for an engine",
  held: "Waiting for an engine",
  moving: "Moving to another engine",
  fetching: "Fetching the adapter",
  queued: "Queued",
  loading: "Loading the adapter",
  prefill: "Prefill",
  generating: "Generating",
};

export const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;

// Units of the currency, exact: a JavaScript number holds the ledger's pico-units.
function money(pico, currency) {
  const units = pico / 1e12;
  return new Intl.NumberFormat("en", {
    style: "currency",
    currency,
    minimumFractionDigits: 2,
    maximumFractionDigits: units && units < 0.01 ? 12 : 6,
  }).format(units);
}

// `TTFT 182 ms · 94 tok/s · 310 in (256 cached) · 88 out · $0.0004 · req_...`
export function footline(done, currency) {
  const usage = done.usage;
  const cached = usage.prompt_tokens_details.cached_tokens;
  return [
    done.ttft_ms !== null && `TTFT ${Math.round(done.ttft_ms)} ms`,
    done.tokens_per_s !== null && `${Math.round(done.tokens_per_s)} tok/s`,
    `${usage.prompt_tokens} in${cached ? ` (${cached} cached)` : ""}`,
    `${usage.completion_tokens} out`,
    money(done.cost, currency),
    done.request_id,
  ].filter(Boolean).join(" · ");
}

// What an answer waited for before its first token, where that is worth a word.
export function waits(done) {
  const parts = [["queued", done.queue_ms], ["adapter loaded in", done.load_ms]];
  return parts.filter(([, ms]) => ms >= 50).map(([what, ms]) => `${what} ${seconds(ms)}`).join(" · ");
}
