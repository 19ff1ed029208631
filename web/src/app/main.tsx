// The entry point of the chat page.

import { render } from "preact";
import { App } from "./app.js";
import "./style.css";

render(<App />, document.getElementById("app")!);
