// Functions that create elements.
export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

export function button(text, act, label = "") {
  const made = element("button", "button plain", text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

// The figures below an answer; the id in them links to the request.
export function footed(text) {
  const [, figures, id] = text.match(/^(.*?)(req_[\w-]+)?$/s);
  const foot = element("p", "foot faint", figures);
  if (id) {
    const link = foot.appendChild(element("a", "", `req_…${id.slice(-6)}`));
    const { slug } = document.querySelector("lora-playground").dataset;
    [link.href, link.title] = [`/t/${slug}/requests/${id}`, id];
  }
  return foot;
}
