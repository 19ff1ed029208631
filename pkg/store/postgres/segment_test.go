package postgres

import (
	"net/url"
	"testing"

	"github.com/imdhq/imd/pkg/store"
)

// numbered adds an allocator to a data source name.
func numbered(dsn string, n store.Numbering) string {
	if n == (store.Numbering{}) {
		return dsn
	}
	q := url.Values{}
	n.Put(q)
	return dsn + "&" + q.Encode()
}

// The port's promises hold under segment too.
func TestConformanceSegment(t *testing.T) { conformance(t, store.Numbering{Allocator: store.Segment}) }
