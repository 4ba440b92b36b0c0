// Browsers refuse workers to pages on the disk. There, a hidden frame runs the search in a worker's place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${url}"><\/script>`;
      this.loaded = new Promise((resolve) => {
        frame.onload = () => resolve(frame.contentWindow);
      });
      document.body.append(frame);
      this.frame = frame;
    }

    async postMessage(data) {
      const inside = await this.loaded;
      inside.postMessage = (answer) => this.dispatchEvent(new MessageEvent("message", { data: answer }));
      inside.importScripts = (...urls) =>
        Promise.all(
          urls.map(
            (url) =>
              new Promise((resolve) => {
                const script = inside.document.createElement("script");
                script.src = url;
                script.onload = resolve;
                inside.document.head.append(script);
              }),
          ),
        );
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
