// Keeps what a page had when its session ended, until the same user is back after signing in. It is
// stored in this tab only, and is gone when the tab is closed.
const PREFIX = "playground:";
const name = (user) => `${PREFIX}${user}:${location.pathname}`;

export function keep(user, state) {
  sessionStorage.setItem(name(user), JSON.stringify(state));
}

// What was kept; another user's is deleted.
export function returned(user) {
  const found = sessionStorage.getItem(name(user));
  for (const key of Object.keys(sessionStorage)) {
    if (key.startsWith(PREFIX)) sessionStorage.removeItem(key);
  }
  return found && JSON.parse(found);
}
