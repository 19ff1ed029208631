package state

import (
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// maxReceiptMembers is the largest group for which receipts can be switched on:
// each of its members' receipts goes to all others.
const maxReceiptMembers = 500

// What may change while the role runs.
var (
	receiptMembers = settings.Int("receipt.max_members", protocol.LargeGroup, 2, maxReceiptMembers,
		"Members of a group up to which the others see how far each has received and read.", settings.Unit("members"))

	declared = settings.Schema{Keys: []settings.Declared{receiptMembers, scheduleUser, scheduleTotal, scheduleHorizon}}
)
