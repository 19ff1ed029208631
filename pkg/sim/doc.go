// Package sim runs whole schedules of imd in memory, by seed: devices, gateways,
// state nodes, the push role and a message store, on a virtual clock and over a
// network that delays, loses, cuts and goes silent. Nothing waits for real
// time and nothing runs in parallel inside a schedule, so that thousands of
// them pass in a minute and each can be had again by its seed.
//
// What decides is the real code: the lanes (pkg/lane), the runs of a connection
// (pkg/run), its books about deliveries (pkg/delivery), and of the SDK the
// outbox and the timeline. Around them stands a world that does what the
// modules and the SDK's client do with sockets and goroutines: it carries out
// effects and brings events. The message store is a model of the port's
// contract with outcomes that nobody hears of.
//
// A schedule has two parts. First people send while things break: processes
// crash and pause, calls and connections are lost, the store is away, slow,
// locked or silent about an outcome, members come and go, a backup is restored.
// Then everything heals and must settle. The judge looks on all the time and at
// the end: nothing acknowledged before its commit, one answer for each message,
// the order of each sender, the same log on each device, shown once and in
// order, no gap left, nothing lost, every send answered.
//
// A Variant breaks one rule on purpose. Each of them must be caught, which is
// how the judge is judged.
package sim
