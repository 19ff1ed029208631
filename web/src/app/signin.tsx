// The sign-in page.

import { useEffect, useState } from "preact/hooks";
import { Avatar } from "./avatar.js";
import { Logo } from "./icons.js";
import { type DemoUser, demoUsers, hashUser, keptToken, signIn, signInDemo } from "./session.js";
import { enter } from "./state.js";

/** Offers the demo users of a development server, and a field for a token. */
export function SignIn() {
  const [users, setUsers] = useState<DemoUser[] | undefined>(undefined);
  const [problem, setProblem] = useState("");
  const [token, setToken] = useState("");

  useEffect(() => {
    let here = true;
    void resume().then((offered) => here && setUsers(offered));
    return () => {
      here = false;
    };
  }, []);

  const submit = (event: Event) => {
    event.preventDefault();
    const trimmed = token.trim();
    if (trimmed === "") return setProblem("Paste a token first.");
    signIn(trimmed).then(enter, () => setProblem("This is not a token. Copy all of it, with both dots."));
  };

  if (users === undefined) return <main class="signin" aria-busy="true" />;
  return (
    <main class="signin">
      <div class="card">
        <Logo size={56} />
        <h1>Welcome to imd</h1>
        {users.length > 0 && (
          <section aria-label="Demo users">
            <p class="quiet">Pick a demo user. Open a second window for another one.</p>
            <ul class="demo">
              {users.map((user) => (
                <li key={user.userId}>
                  <button type="button" class="demo-user" onClick={() => void signInDemo(user).then(enter)}>
                    <Avatar name={user.userId} />
                    <span>{user.userId}</span>
                  </button>
                </li>
              ))}
            </ul>
            <p class="or quiet">or</p>
          </section>
        )}
        <form onSubmit={submit}>
          <label for="token">Your token</label>
          <textarea
            id="token"
            rows={3}
            spellcheck={false}
            autocomplete="off"
            placeholder="eyJhbGciOi…"
            value={token}
            aria-invalid={problem !== ""}
            aria-describedby="token-help"
            onInput={(event) => {
              setToken(event.currentTarget.value);
              setProblem("");
            }}
          />
          <p id="token-help" class={problem ? "problem" : "quiet"} role={problem ? "alert" : undefined}>
            {problem || "You get it from the application that this server belongs to."}
          </p>
          <button type="submit" class="primary wide">
            Sign in
          </button>
        </form>
      </div>
    </main>
  );
}

/** Signs in as the address or this tab says; otherwise returns the users to offer. */
async function resume(): Promise<DemoUser[]> {
  const wanted = hashUser();
  const kept = keptToken();
  if (kept && !wanted) {
    enter(await signIn(kept));
    return [];
  }
  const users = await demoUsers();
  const user = users.find((u) => u.userId === wanted);
  if (user) enter(await signInDemo(user));
  return users;
}
