package announce

import (
	"context"
	"testing"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

// shelf has announcements with the numbers up to a last one.
type shelf struct {
	Directory
	last int64
	old  bool // knows nothing of pages
}

func (s shelf) ListAnnouncements(_ context.Context, r *v1.ListAnnouncementsRequest) (*v1.ListAnnouncementsResponse, error) {
	top := s.last
	if r.BeforeSeq > 0 && !s.old {
		top = r.BeforeSeq - 1
	}
	low := max(1, top-int64(r.Limit)+1)
	res := &v1.ListAnnouncementsResponse{More: top-low+1 == int64(r.Limit)}
	for n := low; n <= top; n++ {
		res.Announcements = append(res.Announcements, &imdv1.AnnouncementInfo{Seq: n})
	}
	return res, nil
}

// Pages go from the newest announcement to the first one, each in order, and end.
func TestPagesOfAnnouncements(t *testing.T) {
	for last := range int64(8) {
		s, want, token := Service{Directory: shelf{last: last}}, last, ""
		for page := 0; ; page++ {
			res, err := s.ListAnnouncements(t.Context(), &imdv1.ListAnnouncementsRequest{Limit: 3, PageToken: token})
			if err != nil || page > 3 {
				t.Fatalf("page %d of %d: %v", page, last, err)
			}
			for i, a := range res.Announcements {
				if a.Seq != want-int64(len(res.Announcements)-1-i) {
					t.Errorf("page %d of %d: %v", page, last, res.Announcements)
				}
			}
			want -= int64(len(res.Announcements))
			if token = res.NextPageToken; token == "" {
				break
			}
		}
		if want != 0 {
			t.Errorf("%d of %d are on no page", want, last)
		}
	}
	for _, r := range []*imdv1.ListAnnouncementsRequest{{Limit: -1}, {PageToken: "x"}, {PageToken: "-3"}, {PageToken: "0"}} {
		if _, err := (Service{Directory: shelf{last: 9}}).ListAnnouncements(t.Context(), r); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// A node of an older version, which answers with the first page whatever is asked,
// does not send its caller round and round.
func TestPagesOfAnOlderVersion(t *testing.T) {
	s := Service{Directory: shelf{last: 9, old: true}}
	if res, err := s.ListAnnouncements(t.Context(), &imdv1.ListAnnouncementsRequest{Limit: 3}); err != nil || len(res.Announcements) != 3 {
		t.Errorf("the first page: %v, %v", res, err)
	}
	if _, err := s.ListAnnouncements(t.Context(), &imdv1.ListAnnouncementsRequest{Limit: 3, PageToken: "7"}); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
		t.Errorf("the second: %v", err)
	}
}
