// Search on pages that are opened from disk: browsers start no worker from a file, so that a hidden frame does its work.
if (location.protocol === "file:") {
  const answer = (data) => parent.dispatchEvent(Object.assign(new Event("from-frame"), { data }));
  const load = (...urls) =>
    urls.reduce(
      (before, src) =>
        before.then(
          () =>
            new Promise((resolve) => {
              const script = Object.assign(document.createElement("script"), { src, onload: resolve });
              document.body.appendChild(script);
            }),
        ),
      Promise.resolve(),
    );
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true });
      document.body.appendChild(frame);
      this.frame = frame.contentWindow;
      this.frame.document.open();
      this.frame.document.write(`<body><script>postMessage = ${answer}; importScripts = ${load};</script>`);
      this.frame.document.write(`<script src="${url}"></script></body>`);
      this.frame.document.close();
      this.ready = new Promise((resolve) => (this.frame.onload = resolve));
      addEventListener("from-frame", ({ data }) => this.dispatchEvent(new MessageEvent("message", { data })));
    }
    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
