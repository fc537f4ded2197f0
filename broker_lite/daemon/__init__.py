"""The command `onceflow broker`: start, signals, health."""
