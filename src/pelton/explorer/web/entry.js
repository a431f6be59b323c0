// The page starts here; in a worker, which has no document, so does the placing of a graph.
import { place } from "./layout.js";
import { start } from "./main.js";

if (typeof document === "undefined") self.onmessage = (event) => postMessage(place(event.data));
else start();
