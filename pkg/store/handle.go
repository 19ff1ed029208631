package store

import (
	"sync/atomic"

	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Handle gives modules the stores that the storage module opens at start.
type Handle struct {
	messages atomic.Pointer[MessageStore]
	routes   atomic.Pointer[RouteStore]
	dedup    atomic.Pointer[dedup.Cache]
}

// SetMessages publishes the opened message store; nil takes it away.
func (h *Handle) SetMessages(m MessageStore) {
	if m == nil {
		h.messages.Store(nil)
		return
	}
	h.messages.Store(&m)
}

// SetRoutes publishes the opened route store; nil takes it away.
func (h *Handle) SetRoutes(r RouteStore) {
	if r == nil {
		h.routes.Store(nil)
		return
	}
	h.routes.Store(&r)
}

// SetDedup publishes the dedup cache; nil takes it away.
func (h *Handle) SetDedup(c dedup.Cache) {
	if c == nil {
		h.dedup.Store(nil)
		return
	}
	h.dedup.Store(&c)
}

// Messages is the message store, or an unavailable error before storage has
// started and after it has closed.
func (h *Handle) Messages() (MessageStore, error) {
	if p := h.messages.Load(); p != nil {
		return *p, nil
	}
	return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "store", "the message store is not open")
}

// Routes is the route store, or an unavailable error before storage has
// started and after it has closed.
func (h *Handle) Routes() (RouteStore, error) {
	if p := h.routes.Load(); p != nil {
		return *p, nil
	}
	return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "store", "the route store is not open")
}

// Dedup is the dedup cache, or an unavailable error before storage has started
// and after it has closed.
func (h *Handle) Dedup() (dedup.Cache, error) {
	if p := h.dedup.Load(); p != nil {
		return *p, nil
	}
	return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "store", "the dedup cache is not open")
}
