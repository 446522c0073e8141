"""What `tensorcast doctor` looks at. Each check is a function of what it is given (roots of /proc and /sys, limits,
answers of a server), so that a host of any kind can be made up for it; only the doctor itself looks at this one."""
