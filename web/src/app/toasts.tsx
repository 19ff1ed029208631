// Messages that go away by themselves.

import * as icons from "./icons.js";
import { dismiss, spoken, toasts } from "./state.js";

/** The newest messages, and what screen readers say of new messages of the chat. */
export function Toasts() {
  return (
    <>
      <div class="toasts" role="alert">
        {toasts.value.map((t) => (
          <div key={t.id} class="toast">
            <span>{t.text}</span>
            <button type="button" class="round" aria-label="Dismiss" onClick={() => dismiss(t.id)}>
              <icons.Close />
            </button>
          </div>
        ))}
      </div>
      <div class="spoken" aria-live="polite">
        {spoken.value}
      </div>
    </>
  );
}
