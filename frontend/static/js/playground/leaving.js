// What a page had when its session ended, for the same person's return to it after signing in. It
// stays in this tab, and goes with it.
const PREFIX = "playground:";
const name = (user) => `${PREFIX}${user}:${location.pathname}`;

export function keep(user, state) {
  sessionStorage.setItem(name(user), JSON.stringify(state));
}

// What was left here; another person's is forgotten.
export function returned(user) {
  const found = sessionStorage.getItem(name(user));
  for (const key of Object.keys(sessionStorage)) {
    if (key.startsWith(PREFIX)) sessionStorage.removeItem(key);
  }
  return found && JSON.parse(found);
}
