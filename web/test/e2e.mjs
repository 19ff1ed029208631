// Two people in two browsers against a running development server.
//   BASE=http://127.0.0.1:8420/ SHOTS=/tmp/shots node test/e2e.mjs
// BASE: where the page is served, with the demo users alice and bob. SHOTS: a
// folder for screenshots of every state; none are made without it. CHROMIUM:
// the browser, /usr/bin/chromium unless given. Exits with 0 if all is well.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { cpus } from "node:os";
import { chromium } from "playwright-core";

const base = new URL(process.env.BASE ?? "http://127.0.0.1:8420/").href;
const shotsDir = process.env.SHOTS ?? "";
const tag = Math.random().toString(36).slice(2, 7);
const waitMs = 60_000; // for what never comes; what has to come soon is measured by the clock below
if (shotsDir) mkdirSync(shotsDir, { recursive: true });

const browser = await chromium.launch({
  timeout: waitMs,
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run"],
});
const problems = [];
// The time, in milliseconds, of a machine that has nothing else to do: it goes by more
// slowly while more wants to run than there are processors, and stands while this
// process does.
const tickMs = 10;
const clock = { told: 0, last: performance.now() };
setInterval(() => {
  const now = performance.now();
  clock.told += Math.min(now - clock.last, 2 * tickMs) / Math.min(Math.max(crowd(), 1), 10);
  clock.last = now;
}, tickMs).unref();

// How many threads want to run for each processor; 1 where that is not known.
function crowd() {
  try {
    const running = parseInt(readFileSync("/proc/loadavg", "utf8").split(" ")[3], 10);
    return Number.isNaN(running) ? 1 : running / cpus().length;
  } catch {
    return 1;
  }
}

// Failures of requests that a step brings about on purpose.
let expected = undefined;

try {
  await run();
  assert.deepEqual(problems, [], "the pages reported errors");
  console.log(`ok: ${base}`);
} finally {
  await browser.close();
}

async function run() {
  const aliceContext = await newContext();
  const bobContext = await newContext();
  await step("sign in", () => signInPage(aliceContext));
  const alice = await openAs(aliceContext, "alice");
  await step("empty", () => shoot(alice, "02-list"));
  const bob = await openAs(bobContext, "bob");
  await step("exchange", () => exchange(alice, bob));
  await step("presence", () => presence(alice, bob));
  await step("odd texts", () => oddTexts(alice, bob));
  await step("group", () => group(alice, bob));
  await step("offline", () => offline(aliceContext, alice, bob));
  await step("failed and retry", () => failed(alice, bob));
  await step("older pages", () => older(alice, bob));
  await step("reload", () => reload(alice));
  await step("closed while offline", () => closedWhileOffline(bobContext, bob, alice));
  await step("keyboard", () => keyboard(alice));
}

// --- Steps ---

async function signInPage(context) {
  const page = await newPage(context);
  await page.goto(base);
  await page.getByRole("button", { name: "alice" }).waitFor();
  await shoot(page, "01-signin");
  await page.getByLabel("Your token").fill("nonsense");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("This is not a token").waitFor();
  await page.getByLabel("Your token").fill(`${b64({ alg: "HS256" })}.${b64({ sub: "mallory" })}.AAAA`);
  expected = /401|403|WebSocket/;
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("Sign in again.").waitFor();
  await shoot(page, "01-signin-refused");
  await page.getByRole("button", { name: "Sign in again" }).click();
  await page.getByRole("button", { name: "alice" }).waitFor();
  expected = undefined;
  await page.close();
}

async function exchange(alice, bob) {
  await alice.getByRole("button", { name: "New conversation" }).click();
  await shoot(alice, "03-new-direct");
  await alice.getByLabel("User id").fill("bob");
  await alice.getByRole("button", { name: "Open", exact: true }).click();
  await composer(alice).waitFor();
  await shoot(alice, "04-nothing-yet");
  await write(alice, `hello bob ${tag}`);
  const row = bob.locator(".row", { hasText: `hello bob ${tag}` });
  await row.waitFor();
  await row.locator(".badge").waitFor();
  await mark(alice, `hello bob ${tag}`, "Delivered");
  await shoot(bob, "05-unread");
  await row.click();
  await message(bob, `hello bob ${tag}`).waitFor();
  await mark(alice, `hello bob ${tag}`, "Read");
  await row.locator(".badge").waitFor({ state: "detached" });
  await write(bob, `hello alice ${tag}`);
  await write(bob, "Shall we have lunch at one? I found a new place: https://example.com/menu?day=today.");
  await message(alice, `hello alice ${tag}`).waitFor();
  await mark(bob, `hello alice ${tag}`, "Read");
  for (let i = 1; i <= 5; i++) await write(alice, `order ${i} ${tag}`);
  await message(bob, `order 5 ${tag}`).waitFor();
  const order = (await texts(bob)).filter((t) => t.startsWith("order ") && t.endsWith(tag));
  assert.deepEqual(order, [1, 2, 3, 4, 5].map((i) => `order ${i} ${tag}`));
  await shoot(alice, "06-chat");
}

async function presence(alice, bob) {
  const below = alice.locator(".chat .bar-names");
  const row = alice.locator(".row", { has: alice.locator(".row-title", { hasText: /^bob$/ }) });
  await below.getByText("online", { exact: true }).waitFor();
  await row.locator(".avatar-dot").waitFor();
  await bob.waitForTimeout(3_000); // what he has typed just now counts in the rate
  await composer(bob).pressSequentially("let me see");
  await below.getByText("typing…").waitFor();
  await row.getByText("typing…").waitFor();
  await shoot(alice, "06-typing");
  await write(bob, `let me see ${tag}`);
  await message(alice, `let me see ${tag}`).waitFor();
  await below.getByText("online", { exact: true }).waitFor();
  await alice.getByRole("button", { name: "About this conversation" }).click();
  await shoot(alice, "06-online");
  const left = clock.told;
  await bob.goto("about:blank");
  await below.getByText("last seen just now").waitFor();
  assert.ok(clock.told - left < 3_000, `offline after ${clock.told - left} ms`);
  await row.locator(".avatar-dot").waitFor({ state: "detached" });
  await shoot(alice, "06-last-seen");
  await alice.getByRole("button", { name: "Close", exact: true }).click();
  await bob.goto(`${base}#user=bob`);
  await openConversation(bob, "alice");
  await below.getByText("online", { exact: true }).waitFor();
}

async function oddTexts(alice, bob) {
  const html = `<img src=x onerror="document.title='hacked'"><b>bold?</b> ${tag}`;
  await write(bob, html);
  await message(alice, html).waitFor();
  assert.equal(await alice.locator(".text img, .text b").count(), 0);
  await write(bob, "שלום, מה שלומך היום? نص عربي");
  await write(bob, "🎉🎉");
  await write(bob, `${"long".repeat(60)} ${tag}`);
  await composer(bob).fill("two\nlines");
  await composer(bob).press("Shift+Enter");
  await composer(bob).pressSequentially("and three");
  await composer(bob).press("Enter");
  await message(alice, "two\nlines\nand three").waitFor();
  await shoot(alice, "07-odd-texts");
  await composer(alice).fill("x".repeat(16_000));
  await alice.getByText("384 left").waitFor();
  await composer(alice).fill("é".repeat(8_200));
  await alice.getByText("16 bytes too long").waitFor();
  assert.equal(await alice.getByRole("button", { name: "Send" }).isDisabled(), true);
  await shoot(alice, "08-too-long");
  await composer(alice).fill(`${"Lorem ipsum dolor sit amet, consetetur. ".repeat(408)}${tag}`);
  await composer(alice).press("Enter");
  const folded = bob.locator(".message", { hasText: "Lorem ipsum" }).last();
  await folded.getByRole("button", { name: "Show all" }).click();
  await bob.locator(".message .text", { hasText: `consetetur. ${tag}` }).waitFor();
  await noOverflow(alice);
}

async function group(alice, bob) {
  const name = `Lunch ${tag}`;
  await alice.getByRole("button", { name: "New conversation" }).first().click();
  await alice.getByRole("button", { name: "Group", exact: true }).click();
  await alice.getByLabel("Name", { exact: true }).fill(name);
  await alice.getByLabel("Members").fill("bob");
  await shoot(alice, "09-new-group");
  await alice.getByRole("button", { name: "Make the group" }).click();
  await alice.locator(".chat .bar-title", { hasText: name }).waitFor();
  const row = bob.locator(".row", { hasText: name });
  await row.waitFor();
  await row.click();
  await write(alice, `who is in? ${tag}`);
  await message(bob, `who is in? ${tag}`).waitFor();
  await composer(bob).pressSequentially("m");
  await alice.locator(".chat .bar-names").getByText("bob is typing…").waitFor();
  await alice.getByRole("button", { name: "About this conversation" }).click();
  await alice.locator(".member", { hasText: "bob" }).getByText("online").waitFor();
  await shoot(alice, "09-group-typing");
  await alice.getByRole("button", { name: "Close", exact: true }).click();
  await write(bob, `me ${tag}`);
  await message(alice, `me ${tag}`).waitFor();
  await mark(alice, `who is in? ${tag}`, "Read by all");

  await alice.getByRole("button", { name: "About this conversation" }).click();
  await alice.getByRole("button", { name: "Rename the group" }).click();
  await alice.getByLabel("Name of the group").fill(`${name} at one`);
  await alice.getByRole("button", { name: "Save" }).click();
  await bob.locator(".chat .bar-title", { hasText: `${name} at one` }).waitFor();
  await bob.locator(".change", { hasText: "alice named the group" }).waitFor();
  await alice.getByLabel("User ids to add").fill("carol");
  await alice.getByRole("button", { name: "Add", exact: true }).click();
  await alice.locator(".member", { hasText: "carol" }).waitFor();
  await bob.locator(".change", { hasText: "alice added carol" }).waitFor();
  await shoot(alice, "10-group-info");
  await alice.getByRole("button", { name: "Remove carol" }).click();
  await alice.locator(".member", { hasText: "carol" }).waitFor({ state: "detached" });
  await bob.locator(".change", { hasText: "alice removed carol" }).waitFor();
  await shoot(bob, "11-group-chat");

  await bob.getByRole("button", { name: "About this conversation" }).click();
  await bob.locator(".member", { hasText: "alice" }).waitFor();
  await bob.getByRole("button", { name: "Leave the group" }).click();
  // The page may hear that he has left before it hears that his wish was done.
  await bob.route("**/ConversationService/Leave", async (route) => {
    const response = await route.fetch();
    await bob.getByText("You are not in this group any more").waitFor();
    await route.fulfill({ response });
  });
  await bob.getByRole("button", { name: "Really leave?" }).click();
  await bob.locator(".member").first().waitFor({ state: "detached" });
  await alice.locator(".change", { hasText: "bob left" }).waitFor();
  await bob.getByText("You are not in this group any more").waitFor();
  await shoot(bob, "12-left");
  await alice.getByRole("button", { name: "Close", exact: true }).click();
}

async function offline(context, alice, bob) {
  await openConversation(alice, "bob");
  await openConversation(bob, "alice");
  expected = /ERR_INTERNET_DISCONNECTED|WebSocket/;
  await context.setOffline(true);
  await alice.locator(".banner-wait, .banner-join").waitFor();
  await write(alice, `offline one ${tag}`);
  await write(alice, `offline two ${tag}`);
  await alice.locator(".message-pending", { hasText: `offline two ${tag}` }).waitFor();
  await alice.locator(".banner", { hasText: "2 messages" }).waitFor();
  await alice.locator(".banner-wait").waitFor();
  await alice.locator(".message-pending", { hasText: `offline one ${tag}` }).getByRole("button", { name: "Withdraw" }).waitFor();
  await shoot(alice, "13-offline");
  await write(bob, `meanwhile ${tag}`);
  await context.setOffline(false);
  await message(bob, `offline two ${tag}`).waitFor();
  await message(alice, `meanwhile ${tag}`).waitFor();
  await alice.locator(".banner").waitFor({ state: "detached" });
  expected = undefined;
  const sent = (await texts(bob)).filter((t) => t.startsWith("offline ") && t.endsWith(tag));
  assert.deepEqual(sent, [`offline one ${tag}`, `offline two ${tag}`]);
  assert.deepEqual(await texts(alice), await texts(bob));
}

async function failed(alice, bob) {
  await bob.getByRole("button", { name: "About this conversation" }).click();
  await shoot(bob, "14-person-info");
  await bob.getByRole("button", { name: "Block alice" }).click();
  await bob.getByText("cannot write to you any more").waitFor();
  await write(alice, `blocked ${tag}`);
  const line = alice.locator(".message-failed", { hasText: `blocked ${tag}` });
  await line.waitFor();
  await write(alice, `given up ${tag}`);
  const second = alice.locator(".message-failed", { hasText: `given up ${tag}` });
  await second.waitFor();
  await shoot(alice, "15-failed");
  await second.getByRole("button", { name: "Delete" }).click();
  await second.waitFor({ state: "detached" });
  await alice.reload();
  await line.waitFor();
  await bob.getByRole("button", { name: "Unblock" }).click();
  await bob.getByText("can write to you.").waitFor();
  await bob.getByRole("button", { name: "Close", exact: true }).click();
  await line.getByRole("button", { name: "Retry" }).click();
  await message(bob, `blocked ${tag}`).waitFor();
  await line.waitFor({ state: "detached" });
  await message(alice, `blocked ${tag}`).waitFor();
}

async function older(alice, bob) {
  const count = 150;
  const sent = await bob.evaluate(sendMany, { base, count, to: "alice", from: "bob", text: `many ${tag}` });
  assert.equal(sent, count);
  await message(alice, `many ${tag} ${count}`).waitFor();
  await alice.reload();
  await message(alice, `many ${tag} ${count}`).waitFor();
  const box = alice.locator(".scroll");
  const first = `hello bob ${tag}`;
  let steps = 0;
  const began = clock.told;
  while ((await message(alice, first).count()) === 0) {
    assert.ok(clock.told - began < 60_000, "the older pages do not come");
    if ((await box.evaluate((e) => e.scrollTop)) > 0) steps++; // else a page is awaited
    assert.ok(steps < 60, "the first message does not come");
    const before = await anchor(box, 450);
    await box.evaluate((e) => e.scrollTo(0, Math.max(0, e.scrollTop - 350)));
    await alice.waitForTimeout(120);
    const after = await anchor(box, 450, before.key);
    if (after.found && before.key) assert.ok(Math.abs(after.top - before.top) < 460, `jumped from ${before.top} to ${after.top}`);
  }
  const many = (await texts(alice)).filter((t) => t.startsWith(`many ${tag} `));
  assert.deepEqual(many, Array.from({ length: count }, (_, i) => `many ${tag} ${i + 1}`));
  const place = await anchor(box, 200);
  await write(bob, `while you were reading ${tag}`);
  const pill = alice.getByRole("button", { name: "1 new message" });
  await pill.waitFor();
  const still = await anchor(box, 200, place.key);
  assert.ok(Math.abs(still.top - place.top) <= 2, `a new message moved the view from ${place.top} to ${still.top}`);
  await shoot(alice, "16-pill");
  await pill.click();
  await message(alice, `while you were reading ${tag}`).waitFor();
  await pill.waitFor({ state: "detached" });
  await mark(bob, `while you were reading ${tag}`, "Read");
}

async function reload(alice) {
  const before = (await texts(alice)).slice(-20);
  await alice.reload();
  await message(alice, `while you were reading ${tag}`).waitFor();
  assert.deepEqual((await texts(alice)).slice(-20), before);
  await alice.locator(".row", { hasText: `Lunch ${tag} at one` }).waitFor();
}

async function closedWhileOffline(context, bob, alice) {
  expected = /ERR_INTERNET_DISCONNECTED|WebSocket/;
  await context.setOffline(true);
  await bob.locator(".banner-wait, .banner-join").waitFor();
  await write(bob, `before closing ${tag}`);
  await bob.locator(".message-pending", { hasText: `before closing ${tag}` }).waitFor();
  await bob.close();
  await context.setOffline(false);
  expected = undefined;
  const again = await openAs(context, "bob");
  await message(alice, `before closing ${tag}`).waitFor();
  await openConversation(again, "alice");
  await message(again, `before closing ${tag}`).waitFor();
  assert.equal(await message(again, `before closing ${tag}`).count(), 1);
}

async function keyboard(alice) {
  const list = await alice.locator(".scroll").elementHandle();
  await alice.keyboard.press("Escape");
  await alice.getByText("Choose a conversation").waitFor();
  await list.evaluate((element) => element.dispatchEvent(new Event("scroll"))); // one that was on its way
  await shoot(alice, "17-none-chosen");
  await alice.keyboard.press("Alt+ArrowDown");
  await composer(alice).waitFor();
  await alice.setViewportSize({ width: 360, height: 740 });
  await alice.getByRole("button", { name: "Back to the list" }).click();
  await alice.locator(".row").first().waitFor();
  await alice.locator(".row").first().click();
  await alice.goBack();
  await alice.locator(".row").first().waitFor();
  await shoot(alice, "18-list");
}

// --- Helpers ---

async function step(name, what) {
  const start = Date.now();
  try {
    await what();
  } catch (error) {
    if (shotsDir) for (const [i, page] of browser.contexts().flatMap((c) => c.pages()).entries()) await page.screenshot({ path: `${shotsDir}/error-${i}.png` });
    error.message = `${name}: ${error.message}\n${problems.join("\n")}`;
    throw error;
  }
  console.log(`${name}: ${Date.now() - start} ms`);
}

async function newContext() {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce" });
  context.setDefaultTimeout(waitMs);
  return context;
}

async function newPage(context) {
  const page = await context.newPage();
  page.on("pageerror", (error) => problems.push(`page error: ${error.stack ?? error}`));
  page.on("console", (line) => {
    const text = `${line.text()} ${line.location().url}`;
    if (line.type() === "error" && !expected?.test(text)) problems.push(`console: ${text}`);
  });
  return page;
}

async function openAs(context, user) {
  const page = await newPage(context);
  await page.goto(`${base}#user=${user}`);
  await page.locator(".sidebar .bar-title", { hasText: user }).waitFor();
  await page.locator(".banner").waitFor({ state: "detached" });
  await page.locator(".list .row:not(.skeleton), .empty").first().waitFor();
  return page;
}

async function openConversation(page, title) {
  await page.locator(".row", { has: page.locator(".row-title", { hasText: new RegExp(`^${title}$`) }) }).click();
  await composer(page).waitFor();
}

function composer(page) {
  return page.locator(".composer textarea");
}

async function write(page, text) {
  await composer(page).fill(text);
  await composer(page).press("Enter");
}

/** Stored messages with exactly this text. */
function message(page, text) {
  return page.locator(".message:not(.message-pending):not(.message-failed) .text").filter({ hasText: exactly(text) });
}

function exactly(text) {
  return new RegExp(`^${text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\s+/g, "\\s+")}$`);
}

async function mark(page, text, label) {
  await page.locator(".message.mine", { has: page.locator(".text").filter({ hasText: exactly(text) }) }).locator(`[aria-label="${label}"]`).waitFor();
}

function texts(page) {
  return page.locator(".message .text").allTextContents();
}

/** The first line at or below a height of the view, or where a known line is now. */
function anchor(box, below, key = "") {
  return box.evaluate(
    (element, [height, known]) => {
      const top = element.getBoundingClientRect().top;
      for (const line of element.querySelectorAll(".message")) {
        const at = line.getBoundingClientRect().top - top;
        if (known ? line.dataset.key === known : at >= height) return { key: line.dataset.key, top: at, found: true };
      }
      return { key: "", top: 0, found: false };
    },
    [below, key],
  );
}

async function sendMany({ base, count, to, from, text }) {
  const { users } = await (await fetch(`${base}dev/users`)).json();
  const { token } = users.find((u) => u.userId === from);
  let sent = 0;
  for (let i = 1; i <= count; i++) {
    const response = await fetch(`${base}imd.v1.MessageService/Send`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
      body: JSON.stringify({ toUser: to, clientMessageId: crypto.randomUUID(), content: { text: `${text} ${i}` } }),
    });
    if (response.ok) sent++;
  }
  return sent;
}

async function noOverflow(page) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `the page is ${wide} px too wide`);
}

async function shoot(page, name) {
  const size = page.viewportSize();
  for (const width of [360, 1280]) {
    await page.setViewportSize({ width, height: width === 360 ? 740 : 800 });
    await noOverflow(page);
    if (!shotsDir) continue;
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.waitForTimeout(60);
      await page.screenshot({ path: `${shotsDir}/${name}-${width}-${colorScheme}.png` });
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize(size);
}

function b64(value) {
  return Buffer.from(JSON.stringify(value)).toString("base64url");
}
