package rules

import "github.com/imdhq/imd/pkg/im"

// Distinct keeps the first of equal users.
func Distinct(users []im.UserID) []im.UserID {
	seen := make(map[im.UserID]bool, len(users))
	var out []im.UserID
	for _, u := range users {
		if !seen[u] {
			seen[u] = true
			out = append(out, u)
		}
	}
	return out
}

// Texts are ids as plain strings.
func Texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, id := range list {
		out[i] = string(id)
	}
	return out
}
