package config

import "strings"

// Nearest is the known word that a mistyped one most likely stood for, or "".
// A word whose last part is the same counts as near wherever it stands, which
// finds keys that were put into the wrong section.
func Nearest(word string, known []string) string {
	best, bestDist := "", max(2, len(word)/3)+1
	for _, k := range known {
		if d := distance(word, k); d < bestDist {
			best, bestDist = k, d
		}
	}
	if best != "" {
		return best
	}
	last := word[strings.LastIndexByte(word, '.')+1:]
	for _, k := range known {
		if k == last || strings.HasSuffix(k, "."+last) {
			return k
		}
	}
	for _, k := range known {
		if distance(last, k[strings.LastIndexByte(k, '.')+1:]) <= 1 {
			return k
		}
	}
	return ""
}

// distance is the number of letters to insert, delete or replace to get from a
// to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, diag+1, row[j]+1)
		}
	}
	return row[len(b)]
}

func didYouMean(word string, known []string) string {
	if n := Nearest(word, known); n != "" {
		return "did you mean " + n + "?"
	}
	return ""
}
