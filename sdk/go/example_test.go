package imd_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	imd "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func Example() {
	url, stop := imd.DemoServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	alice, err := imd.Connect(ctx, url, imd.Options{Token: "alice"})
	if err != nil {
		log.Fatal(err)
	}
	defer alice.Close()
	bob, err := imd.Connect(ctx, url, imd.Options{Token: "bob"})
	if err != nil {
		log.Fatal(err)
	}
	defer bob.Close()

	events := bob.Events(ctx)
	stored, err := alice.SendTo(ctx, "bob", imd.Text("hello")).Acked(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored as", stored.Seq)
	for ev, err := range events {
		if err != nil {
			log.Fatal(err)
		}
		if e, ok := ev.(*imd.EntryEvent); ok {
			fmt.Println(e.Entry.Sender, "says", e.Text())
			break
		}
	}
	// Output:
	// stored as 1
	// alice says hello
}

func ExampleConversation_History() {
	url, stop := imd.DemoServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	alice, err := imd.Connect(ctx, url, imd.Options{Token: "alice"})
	if err != nil {
		log.Fatal(err)
	}
	defer alice.Close()

	chat := alice.Direct("bob")
	for _, text := range []string{"one", "two", "three"} {
		if _, err := chat.Send(imd.Text(text)).Acked(ctx); err != nil {
			log.Fatal(err)
		}
	}
	for e, err := range chat.History(ctx, imd.Backward(), imd.Limit(2)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Seq, e.Content.GetText())
	}
	// Output:
	// 3 three
	// 2 two
}

func ExampleError() {
	url, stop := imd.DemoServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	alice, err := imd.Connect(ctx, url, imd.Options{Token: "alice"})
	if err != nil {
		log.Fatal(err)
	}
	defer alice.Close()

	_, err = alice.Conversation("g_404").Send(imd.Text("anybody?")).Acked(ctx)
	var e *imd.Error
	if errors.As(err, &e) && e.Reason == protocol.ReasonNotMember {
		fmt.Println("not a member; try again:", e.Retryable)
	}
	// Output: not a member; try again: false
}
