"""How people get in and stay in: accounts, single sign-on, second factors, sessions, throttling."""
