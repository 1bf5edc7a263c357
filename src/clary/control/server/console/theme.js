// Sets the chosen colours before the first paint. A plain script: modules run after it.
(() => {
  try {
    const chosen = localStorage.getItem("clary-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is blocked: the system's choice stands.
  }
})();
