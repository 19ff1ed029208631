// Package imd is the Go client of the imd instant-messaging server.
//
// A Client keeps one session alive: it connects, resumes after every break,
// moves away from a node that drains, sends what is in its outbox in order and
// exactly once, and merges what arrives into conversations without gaps or
// duplicates. Nothing the application does can hold up the connection: events
// are pulled, and a reader that is too slow is told so and then served from
// the server's history.
//
//	client, err := imd.Connect(ctx, "ws://127.0.0.1:8420", imd.Options{Token: token})
//	if err != nil { ... }
//	defer client.Close()
//
//	stored, err := client.SendTo(ctx, "bob", imd.Text("hello")).Acked(ctx)
//	for ev, err := range client.Events(ctx) { ... }
//
// All methods are safe for concurrent use. The packages below it can be used on
// their own: protocol is the frame codec, timeline the pure merge.
package imd
