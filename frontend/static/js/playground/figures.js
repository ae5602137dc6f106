// The figures shown below an answer.
import { duration, money } from "../format.js";

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

// For a running clock: `1.4 s`.
export const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;

// `TTFT 182 ms · 94 tok/s · 310 in (256 cached) · 88 out · $0.0004 · req_...`
export function footline(done) {
  const usage = done.usage;
  const cached = usage.prompt_tokens_details.cached_tokens;
  return [
    done.ttft_ms !== null && `TTFT ${duration(done.ttft_ms)}`,
    done.tokens_per_s !== null && `${Math.round(done.tokens_per_s)} tok/s`,
    `${usage.prompt_tokens} in${cached ? ` (${cached} cached)` : ""}`,
    `${usage.completion_tokens} out`,
    money(done.cost / 1e12),
    done.request_id,
  ].filter(Boolean).join(" · ");
}

// What an answer waited for before its first token, if it waited noticeably.
export function waits(done) {
  const parts = [["queued", done.queue_ms], ["adapter loaded in", done.load_ms]];
  return parts.filter(([, ms]) => ms >= 50).map(([what, ms]) => `${what} ${duration(ms)}`).join(" · ");
}
