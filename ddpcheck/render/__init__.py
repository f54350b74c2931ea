"""Pure functions of a `Report`: terminal, HTML, JUnit XML, GitHub. No torch here."""
