// Runs before anything is drawn, so that a dark page never flashes white.
const theme = localStorage.getItem("theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
