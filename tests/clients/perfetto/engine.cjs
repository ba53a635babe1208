// Perfetto's engine as a filter: requests of its RPC protocol in at stdin, its answers out at stdout.
//
//     node engine.cjs FOLDER     the folder of a built Perfetto page, which has engine_bundle.js
//
// The engine is a worker of that page. It is given what a worker has and hidden what only Node has,
// so that it loads its WebAssembly as it does in a browser: by a synchronous request.

const fs = require("node:fs");
const path = require("node:path");

const folder = process.argv[2];

class XMLHttpRequest {
  open(method, name) {
    this.response = fs.readFileSync(path.join(folder, name));
  }
  send() {}
}

const worker = { location: { href: "" } };
// What a page would log goes to stderr: stdout is for answers.
const log = (...words) => console.error(...words);
const given = {
  self: worker,
  WorkerGlobalScope: Object,
  XMLHttpRequest,
  console: { log, warn: log, error: log },
  process: undefined,
};
const bundle = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
new Function(...Object.keys(given), bundle)(...Object.values(given));

// The page sends its worker the port through which it asks from then on.
const port = { postMessage: (answer) => fs.writeSync(1, answer) };
worker.onmessage({ data: port });
process.stdin.on("data", (chunk) => port.onmessage({ data: new Uint8Array(chunk) }));
