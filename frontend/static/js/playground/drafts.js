// Keeps what a page has while it is away: reloaded, left for another page, or signed out. It is stored
// in this tab only, a draft for each address, and is gone when the tab is closed.
const PREFIX = "playground:";
const MINE = (user) => `${PREFIX}${user}:`;
const name = (user, address = location.pathname + location.search) => MINE(user) + address;
const STILL_WANTED_MS = 10 * 60_000; // an answer that nobody waited for any longer is not begun anew

export function keep(user, state) {
  if (document.documentElement.hasAttribute("data-signing-out")) return;
  const text = JSON.stringify({ ...state, at: Date.now() });
  try {
    sessionStorage.setItem(name(user), text);
  } catch {
    drop(() => true); // there is no room: this draft before all others
    try {
      sessionStorage.setItem(name(user), text);
    } catch {
      // larger than what a tab may store
    }
  }
}

// What was kept of this address, with `recent` if its answers may still be generated; other users'
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
