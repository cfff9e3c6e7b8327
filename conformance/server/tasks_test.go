package main

// taskTools are the tools of the tasks extension's scenarios.
var taskTools = []string{
	"confirm_delete", "failing_job", "greet", "multi_input", "protocol_error_job", "slow_compute", "test_tool_with_task",
}
