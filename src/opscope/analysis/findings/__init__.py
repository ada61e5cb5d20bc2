"""What a user is told: findings, concerns, grades."""
