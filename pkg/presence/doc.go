// Package presence decides what others see of a user: with which classes of
// devices it is online, or when it was last seen.
//
// # Model
//
// Core is a step function that the elected scheduler drives. Gateways report
// which sessions begin and end with them, in order and each gateway for itself;
// what a gateway says of its own sessions is the truth, so that the union over all
// gateways is who is online. Only of the sessions of one login and device the one
// with the highest route epoch counts: an older one is superseded, and its
// gateway is told to drop it.
//
// # Rules
//
//   - A class is shown at the next tick after its first session began, and hidden
//     only after it has been without a session for a while, so that somebody who
//     reconnects, or whose network comes and goes, does not flicker.
//   - What changes between two ticks and changes back is never told.
//   - Nobody is called offline before every gateway that serves has reported, or
//     has had ten seconds to do so.
//   - A gateway that left the cluster takes its sessions with it at once.
//   - A gateway hears of the users that it asked for, first what they are, then
//     each change.
//
// # What it is not
//
// It holds nothing that the gateways could not tell again, but for when users
// were last seen, which is given to be saved. It knows no clock and makes no call.
package presence
