"""Graph → Graph: every rewriting of a program, as rules that are data and passes that report what they did."""
