customElements.define("card-entry", class extends HTMLElement {});
