// Light or dark, before anything is painted: what was chosen here, or else as the system says.
(() => {
  const root = document.documentElement;
  const kept = () => {
    try {
      return localStorage.getItem("afterlog.theme") ?? "";
    } catch {
      return ""; // storage is switched off
    }
  };
  const show = (theme) => (theme ? root.setAttribute("data-theme", theme) : root.removeAttribute("data-theme"));
  show(kept());
  addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = kept();
    choice.addEventListener("change", () => {
      show(choice.value);
      try {
        localStorage.setItem("afterlog.theme", choice.value);
      } catch {
        // it holds until the page is closed
      }
    });
  });
})();
