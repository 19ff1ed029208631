//go:build !linux

package gateway

import (
	"context"
	"net"
)

// listenWide takes an address.
func listenWide(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", address)
}
