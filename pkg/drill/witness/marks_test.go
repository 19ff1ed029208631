package witness

import (
	"encoding/json"
	"testing"

	"github.com/imdhq/imd/pkg/settings"
)

// The number of a change is read from both settings as it was written.
func TestNumbers(t *testing.T) {
	for _, n := range []int64{0, 1, 2, 999, 123_456, 2_000_000} {
		docs := Documents(n, false)
		values := map[string]string{}
		for _, raw := range docs {
			var d settings.Document
			if err := json.Unmarshal([]byte(raw), &d); err != nil {
				t.Fatal(err)
			}
			for k, v := range d.All {
				values[k] = v
			}
		}
		if one, other := Numbers(values); one != n || other != n {
			t.Errorf("%d is read as %d and %d", n, one, other)
		}
	}
	if one, other := Numbers(map[string]string{oneKey: "3s", otherKey: "1"}); one != 0 || other != 0 {
		t.Errorf("defaults are read as %d and %d", one, other)
	}
}
