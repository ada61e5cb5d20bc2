"""Android devices through the system's adb."""
