package rules

// OpChange is what errors of a change of a group name as the failed operation.
const OpChange = "store.Change"
