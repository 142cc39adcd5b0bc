"""The page in a real browser: Debian's chromium without a screen, driven by Playwright."""
