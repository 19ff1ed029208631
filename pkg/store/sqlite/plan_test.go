package sqlite

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// No query of a hot path reads a whole table or sorts: that would be fast in
// every test and slow with a year of messages.
func TestPlans(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	queries := map[string]string{
		"conversation": sqlConversation, "member": sqlMember, "stored": sqlStored, "by key": sqlByKey, "top": sqlTop,
		"stay": sqlStay, "up": sqlUp, "down": sqlDn, "near": sqlNear, "entry": sqlEntry, "unread": sqlUnread, "last": sqlLast,
		"stays": sqlStays, "stays asked": sqlStaysAsked, "summed": sqlSummed, "summed asked": sqlSummedAsked, "heads": sqlHeads, "members": sqlMembers, "owners": sqlOwners, "blocked": sqlBlocked,
		"user": sqlUser, "creation": sqlCreation, "seen": sqlSeenAt, "visible": sqlVisible, "online": sqlAreOnline,
		"scheduled of": sqlScheduledOf, "scheduled all": sqlScheduledAll, "scheduled turn": sqlTurnScheduled, "scheduled open": sqlScheduledOpen,
		"scheduled request": sqlScheduledRequest, "scheduled one": sqlScheduledOne, "revive scheduled": sqlReviveScheduled,
		"claim scheduled": sqlClaimScheduled, "settle scheduled": sqlSettleScheduled, "trim scheduled": sqlTrimScheduled, "cancel scheduled": sqlCancelScheduled,
		"announcements": sqlAnnouncements, "announcement request": sqlAnnouncementRequest,
		"announcements gone": sqlAnnouncementsGone, "announcements count": sqlAnnouncementsCount, "withdraw": sqlWithdraw, "trim announcements": sqlTrimAnnouncements,
		"due pushes": sqlDuePushes, "put push": sqlPutPush, "unsent": sqlUnsent, "taken": sqlTaken, "push gone": sqlPushGone, "push move": sqlPushMove,
		"push newer": sqlPushNewer, "hush": sqlHush, "hush new": sqlHushNew, "mutes": sqlMutes,
	}
	for i, query := range sqlExpire {
		queries[fmt.Sprint("expire ", i)] = query
	}
	for name, query := range queries {
		args := make([]any, strings.Count(query, "?"))
		for i := range args {
			args[i] = "1"
		}
		if strings.Contains(query, "json_each") {
			for i := range args {
				args[i] = "[]"
			}
		}
		var plan []string
		err := s.w.each(background, "EXPLAIN QUERY PLAN "+query, args, func(scan func(...any) error) error {
			var id, parent, unused int
			var detail string
			err := scan(&id, &parent, &unused, &detail)
			plan = append(plan, detail)
			return err
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, step := range plan {
			scans := strings.HasPrefix(step, "SCAN ") && !strings.Contains(step, "VIRTUAL TABLE") && step != "SCAN CONSTANT ROW" && !strings.HasPrefix(step, "SCAN (subquery")
			if scans || strings.Contains(step, "TEMP B-TREE") {
				t.Errorf("%s: %s", name, strings.Join(plan, " / "))
				break
			}
		}
	}
}
