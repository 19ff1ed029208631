// Package crash kills nodes at their work and checks what they had promised.
package crash
