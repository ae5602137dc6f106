// How idiomorph changes a part of a page. What the user is working with is not replaced: an open
// dialog, details that are shown, the focused field, the rows that are chosen.
export const morphing = {
  morphStyle: "innerHTML",
  ignoreActiveValue: true,
  callbacks: {
    beforeNodeMorphed: (old) => !(old instanceof HTMLDialogElement && old.open),
    beforeAttributeUpdated: (name, element) =>
      !(name === "checked" && element.name === "row") && !(name === "open" && element instanceof HTMLDetailsElement),
  },
};
