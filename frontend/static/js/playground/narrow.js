// Whether the window is as narrow as a phone: one pane at a time, and settings that cover the page.
export const NARROW = matchMedia("(max-width: 860px)");
