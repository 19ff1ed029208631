package im

import (
	"slices"
	"strconv"
	"strings"
)

// UserID names an account. 1 to 64 bytes of A-Z a-z 0-9 . _ - @ +, compared
// byte by byte. "" is the system.
type UserID string

// DeviceID names one installed client of a user; same characters as UserID.
type DeviceID string

// LoginID names what a token stands for (claim sid, else jti). It survives
// reconnects; policies, kicks and revocations act on logins.
type LoginID string

// SessionID names one authenticated connection of a login to one gateway.
type SessionID string

// NodeID names one running process; generated once and kept in its data folder.
type NodeID string

// ConversationID names an ordered log: "d_..." direct, "g_..." group.
type ConversationID string

// Direct reports whether c is the conversation of two users.
func (c ConversationID) Direct() bool { return strings.HasPrefix(string(c), "d_") }

// Group reports whether c is a group.
func (c ConversationID) Group() bool { return strings.HasPrefix(string(c), "g_") }

// ClientMessageID is a UUID, version 4 or 7, made by the sender: the dedup key
// together with conversation and sender.
type ClientMessageID string

// MessageID is a snowflake, unique everywhere and ordered only roughly. A
// string in JSON.
type MessageID int64

// String is the decimal form.
func (m MessageID) String() string { return strconv.FormatInt(int64(m), 10) }

// Seq is a position in one conversation's log, from 1, only rising. Holes are
// legal. 0 = none.
type Seq int64

// Class is the device class that login policies know.
type Class string

// The classes a token or hello may name.
const (
	Phone   Class = "phone"
	Tablet  Class = "tablet"
	Web     Class = "web"
	Desktop Class = "desktop"
	Bot     Class = "bot"
)

// Classes lists the known classes.
func Classes() []Class { return []Class{Phone, Tablet, Web, Desktop, Bot} }

// Valid reports whether c is one of the known classes.
func (c Class) Valid() bool { return slices.Contains(Classes(), c) }
