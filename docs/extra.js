// The theme's search is a dialog without a name.
document.querySelector('[data-md-component="search"]')?.setAttribute("aria-label", "Search");
// The theme wraps tables; wide ones are scrolled by keys, too.
addEventListener("load", () => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap"))
    if (wrap.scrollWidth > wrap.clientWidth) wrap.tabIndex = 0;
});
