// Keeps the state of a page while it is reloaded, left for another page, or signed out. It is stored in
// this tab only, as one draft per URL, and is gone when the tab is closed.
const PREFIX = "playground:";
const MINE = (user) => `${PREFIX}${user}:`;
const name = (user, address = location.pathname + location.search) => MINE(user) + address;
const STILL_WANTED_MS = 10 * 60_000; // an answer that was left for longer is not started again

export function keep(user, state) {
  if (document.documentElement.hasAttribute("data-signing-out")) return;
  const text = JSON.stringify({ ...state, at: Date.now() });
  try {
    sessionStorage.setItem(name(user), text);
  } catch {
    drop(() => true); // no room: this draft replaces all others
    try {
      sessionStorage.setItem(name(user), text);
    } catch {
      // larger than what a tab may store
    }
  }
}

// The draft of this URL, with `recent` if its answers may still be generated; other users'
// drafts are deleted.
export function kept(user) {
  drop((key) => !key.startsWith(MINE(user)));
  const found = JSON.parse(sessionStorage.getItem(name(user)));
  return found && { ...found, recent: Date.now() - found.at < STILL_WANTED_MS };
}

export function forget(user, address) {
  sessionStorage.removeItem(name(user, address));
}

function drop(which) {
  for (const key of Object.keys(sessionStorage)) {
    if (key.startsWith(PREFIX) && which(key)) sessionStorage.removeItem(key);
  }
}
