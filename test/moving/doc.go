// Package moving takes messages from one place to another while or after real
// nodes have worked on them: backups under load, and the way from the embedded
// store to Postgres.
package moving
